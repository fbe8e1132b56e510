"""One line of the table: something that people use with merging, how to switch it on, and where it must work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checks import SCOPES
from tiny_pipelines import generate
from torch import Tensor


def as_it_is(subject: Any) -> Any:
    return subject


def itself(subject: Any) -> list[Any]:
    return [subject]


@dataclass(frozen=True)
class Row:
    """A feature on one kind of model. It generates with a pipeline unless the row says otherwise."""

    group: str
    name: str
    on: str  # the models, as the table names them
    build: Callable[[], Any]
    switch_on: Callable[[Any], Any] = as_it_is  # returns what generates from then on
    generate: Callable[[Any], Tensor] = generate
    warm_up: Callable[[Any], Any] = generate  # generating merged before the feature is on
    merged: Callable[[Any], list[Any]] = itself  # the pipelines or models that merging is applied to
    ratios: tuple[float, ...] = (0.5,)  # one for each of them, or one for all
    options: dict[str, Any] = field(default_factory=dict, hash=False)  # of the merging method
    scopes: tuple[str, ...] = SCOPES  # where it works; elsewhere it must raise
    changes: bool = True  # does it show in an unmerged image?
    single_steps: bool = False  # every call is an image: its only step runs full where a correction asks for full steps
    copies: bool = False  # does switching it on copy the model, and the merging with it?
    tolerance: float = 1e-4  # how far an image may move by rounding alone
    long: bool = False  # left to `make test-all`
    remark: str = ""
    not_on: str = ""  # releases of diffusers on which it cannot be shown, such as "<0.41"
    why_not: str = ""

    def __str__(self) -> str:
        return f"{self.group}, {self.name} ({self.on})"
