"""What several tests of models look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from packaging.version import Version
from tiny_models import DIFFUSERS, TINY_MODELS, TinyModel
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import tokenmerge as tm
from tokenmerge.config.interfaces import Operators
from tokenmerge.engine.session import Session, session_of

# Small enough for the tiny models, and merging from the first block on.
SMALL: dict[str, Any] = {"min_tokens": 16, "skip_blocks": 0}
TILES = tm.ToMA(ratio=0.5, tile=(2, 2), **SMALL)
SCOPES = ("site", "block", "stack")


def since(release: str, what: str) -> pytest.MarkDecorator:
    """For tests of what older releases of diffusers lack."""
    return pytest.mark.skipif(Version(release) > DIFFUSERS, reason=f"diffusers {release} brought {what}")


def in_turn(
    names: str,
    values: Sequence[Any],
    models: Sequence[TinyModel] = TINY_MODELS,
    suits: Callable[[TinyModel, Any], bool] = lambda tiny, value: True,
    turn: int = 0,
) -> pytest.MarkDecorator:
    """Every model with every value that suits it, of which `make test` runs one a model, and `make test-all` all.

    Models take the values in turn, so that each value runs on some models. Tests that give different numbers for
    `turn` run each model with different values.
    """
    parameters = []
    for row, tiny in enumerate(models):
        suitable = [(number, value) for number, value in enumerate(values) if suits(tiny, value)]
        for column, (number, value) in enumerate(suitable):
            marks = () if (row + turn) % len(suitable) == column else pytest.mark.long
            name = value if isinstance(value, str) else f"{type(value).__name__}-{number}"
            parameters.append(pytest.param(tiny, value, id=f"{tiny}-{name}", marks=marks))
    return pytest.mark.parametrize(names, parameters)


def has_scope(tiny: TinyModel, scope: str) -> bool:
    return scope in tiny.scopes


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def session_on(model: nn.Module) -> Session:
    session = session_of(model)
    assert session is not None
    return session


def operators_on(model: nn.Module, stack: int = 0) -> Operators:
    """The operators that the first block of a stack used in the last call."""
    run = session_on(model).stacks[stack]
    operators = run.operators_of(run.described.merging[0])
    assert operators is not None
    return operators


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[int] = []
        self.both: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            key = args[1] if len(args) > 1 else kwargs["key"]
            query = args[0] if args else kwargs["query"]
            self.keys.append(key.shape[-2])
            self.both.append((query.shape[-2], key.shape[-2]))
        return func(*args, **kwargs)


@contextmanager
def key_lengths() -> Iterator[list[int]]:
    """How many keys each attention has read, as it ran: enter it outside of what makes them fewer."""
    with _Counting() as counting:
        yield counting.keys


@contextmanager
def attention_lengths() -> Iterator[list[tuple[int, int]]]:
    """How many queries each attention was asked, and how many keys it has read; the same goes for it."""
    with _Counting() as counting:
        yield counting.both


def part_lengths(model: nn.Module) -> set[int]:
    """How many tokens the parts ran on in the last call."""
    return set(session_on(model).tokens_seen.values())


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
