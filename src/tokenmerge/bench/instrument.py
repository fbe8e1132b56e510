"""Times what merging itself costs inside a running model, by standing between the hooks and the method."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig, Scope
from tokenmerge.config.interfaces import BlockContext, Layout, Operator, Operators
from tokenmerge.ops.regions import Regions
from tokenmerge.runtime.timing import Stopwatch


class TimedConfig:
    """A config that behaves as the one it holds, and puts a stopwatch on everything it makes."""

    def __init__(self, config: MergeConfig, stopwatch: Stopwatch) -> None:
        self._config = config
        self._stopwatch = stopwatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def with_scope(self, scope: Scope) -> TimedConfig:
        return type(self)(self._config.with_scope(scope), self._stopwatch)

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        layout = self._config.layout(grid, downsample, protected)
        if layout.regions is None:
            return layout
        return dataclasses.replace(layout, regions=cast(Regions, _TimedRegions(layout.regions, self._stopwatch)))

    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        made = self._make(tokens, layout, context, previous and _each(previous, _bare))
        timed: dict[int, Operator] = {}

        def wrap(operator: Operator | None) -> Operator | None:
            # One object stays one object: by that, hooks know whether keys are merged like queries.
            if operator is None:
                return None
            return timed.setdefault(id(operator), cast(Operator, _TimedOperator(operator, self._stopwatch)))

        return _each(made, wrap)

    def _make(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        with self._stopwatch.lap("plan"):
            return self._config.plan(tokens, layout, context, previous)


class StagedConfig(TimedConfig):
    """Separates the selection of destinations from the computation of weights.

    A plan from scratch does both at once. Its weights are made a second time, by themselves, under "repeated": that
    long they took the first time too, and by so much the whole call has been prolonged.
    """

    def _make(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        if previous is not None:
            with self._stopwatch.lap("weights"):
                return self._config.plan(tokens, layout, context, previous)
        with self._stopwatch.lap("from scratch"):
            made = self._config.plan(tokens, layout, context, None)
        with self._stopwatch.lap("repeated"):
            self._config.plan(tokens, layout, context, made)
        return made


class _TimedOperator:
    def __init__(self, operator: Operator, stopwatch: Stopwatch) -> None:
        self.bare = operator
        self._stopwatch = stopwatch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.bare, name)
        return self._timed_unmerge_with if name == "unmerge_with" else found  # which not every operator has

    def _timed_unmerge_with(self, tokens: Tensor, errors: Tensor, weights: Tensor) -> Tensor:
        with self._stopwatch.lap("unmerge"):
            restored: Tensor = self.bare.unmerge_with(tokens, errors, weights)  # type: ignore[attr-defined]
            return restored

    def merge(self, tokens: Tensor) -> Tensor:
        with self._stopwatch.lap("merge"):
            return self.bare.merge(tokens)

    def unmerge(self, tokens: Tensor) -> Tensor:
        with self._stopwatch.lap("unmerge"):
            return self.bare.unmerge(tokens)


class _TimedRegions:
    def __init__(self, regions: Regions, stopwatch: Stopwatch) -> None:
        self._regions = regions
        self._stopwatch = stopwatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._regions, name)

    def to(self, device: torch.device) -> _TimedRegions:
        return _TimedRegions(self._regions.to(device), self._stopwatch)

    def gather(self, tokens: Tensor) -> Tensor:
        with self._stopwatch.lap("reorder"):
            return self._regions.gather(tokens)

    def scatter(self, tokens: Tensor) -> Tensor:
        with self._stopwatch.lap("reorder"):
            return self._regions.scatter(tokens)


def _each(operators: Operators, change: Any) -> Operators:
    return dataclasses.replace(operators, queries=change(operators.queries), keys=change(operators.keys))


def _bare(operator: Any) -> Any:
    return operator.bare if isinstance(operator, _TimedOperator) else operator
