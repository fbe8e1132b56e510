"""Two accelerations on one pipeline, such as a preset of ours and a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tokenmerge.accelerations.base import Acceleration, Generation


@dataclass(frozen=True)
class Together(Acceleration):
    """`first` is applied before `second`: hooks of the second run outside those of the first."""

    first: Acceleration
    second: Acceleration

    @property
    def ours(self) -> bool:  # type: ignore[override]
        return self.first.ours or self.second.ours

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        return self.first.adapts or self.second.adapts

    def settings(self) -> dict[str, Any]:
        return {**self.first.settings(), "also": self.second.settings()}

    def steps_of(self, steps: int) -> int:
        return self.second.steps_of(self.first.steps_of(steps))

    def misfit(self, pipe: Any) -> str | None:
        return self.first.misfit(pipe) or self.second.misfit(pipe)

    def prepared(self, pipe: Any, generation: Generation, generate: Callable[[int], object]) -> Acceleration:
        first = self.first.prepared(pipe, generation, generate)
        return Together(first, self.second.prepared(pipe, generation, generate))

    @contextmanager
    def applied(self, pipe: Any, generation: Generation) -> Iterator[None]:
        with self.first.applied(pipe, generation), self.second.applied(pipe, generation):
            yield
