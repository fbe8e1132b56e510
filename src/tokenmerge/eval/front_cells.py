"""Who is ahead at equal speed: for each run and speed-up the best rival, fewer steps, and the best of ours.

A method's settings are one curve. Between two neighbouring settings its quality is linear in the logarithm of the
speed-up. A setting that is as fast as asked for, to a hundredth, or faster counts with its own quality; a method that
never gets that fast has none. Between settings far apart nothing is assumed: real curves sag, and a straight line would
flatter the method.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenmerge.eval.columns import COLUMNS
from tokenmerge.eval.variants import FEWER_STEPS_NAME

Axis = Literal["multiply-adds", "time"]
AXES: tuple[Axis, ...] = ("multiply-adds", "time")
SPEEDUPS = (1.25, 1.5, 2.0, 3.0)
METRICS = ("psnr", "lpips")
HIGHER_IS_BETTER = {column.metric: column.higher_is_better for column in COLUMNS}
REACHED = 0.99  # of a speed-up: caches run the embeddings at skipped steps too, so half of the steps are 1.998x
LEAST_SPEEDUP = 1.02  # a setting that saves less is the baseline, whose PSNR counts as 100: no end of a curve
OVER_FEWER_STEPS = 2.0  # dB
FURTHEST_APART = 2.0  # of two neighbouring settings: how many times as fast the one is as the other


@dataclass(frozen=True)
class Best:
    """The best of several methods at a speed-up."""

    name: str
    value: float


@dataclass(frozen=True)
class Compared:
    """One metric of a cell; None if no method of a kind gets that fast."""

    rival: Best | None
    fewer_steps: float | None
    ours: Best | None
    won: bool
    margin: float | None  # ours over the best rival; positive is better for every metric


@dataclass(frozen=True)
class Cell:
    """One run at one speed-up."""

    model: str
    pixels: str
    steps: int
    pairs: int
    axis: Axis
    speedup: float
    metrics: dict[str, Compared]

    @property
    def won(self) -> bool:
        """At least as good as the best rival in every metric, and 2 dB better than fewer steps."""
        psnr = self.metrics["psnr"]
        if not all(compared.won for compared in self.metrics.values()) or psnr.ours is None:
            return False
        return psnr.fewer_steps is None or psnr.ours.value >= psnr.fewer_steps + OVER_FEWER_STEPS


def cells_of(run: Mapping[str, Any]) -> list[Cell]:
    """All cells of a run, from its metrics.json. Nothing if it has no methods of ours, or no rivals."""
    variants = [variant for variant in run["variants"] if variant["config"] is not None]
    if len({bool(variant.get("ours")) for variant in variants}) < 2:
        return []
    if not all(metric in variant["metrics"] for variant in variants for metric in METRICS):
        return []
    image = run["image"]
    return [
        Cell(
            model=run["model"],
            pixels=pixels_of(image),
            steps=image["steps"],
            pairs=run["pairs"],
            axis=axis,
            speedup=speedup,
            metrics={metric: _compared(variants, axis, speedup, metric) for metric in METRICS},
        )
        for axis, speedup in itertools.product(AXES, SPEEDUPS)
    ]


def pixels_of(image: Mapping[str, Any]) -> str:
    width, height = image["width"], image["height"]
    return str(width) if width == height else f"{width}x{height}"


def speedup_of(variant: Mapping[str, Any], axis: Axis) -> float:
    return float(variant["saved"] if axis == "multiply-adds" else variant["timing"]["speedup"]["value"])


def curves_of(variants: Iterable[Mapping[str, Any]], axis: Axis, metric: str) -> dict[str, list[tuple[float, float]]]:
    """The points (speed-up, quality) of each method, the slowest first."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for variant in variants:
        point = speedup_of(variant, axis), float(variant["metrics"][metric]["value"])
        if point[0] >= LEAST_SPEEDUP:
            curves.setdefault(variant["name"], []).append(point)
    return {name: sorted(points) for name, points in curves.items()}


def value_at(points: Sequence[tuple[float, float]], speedup: float, higher_is_better: bool) -> float | None:
    """The quality of a method at a speed-up; None if it never gets that fast.

    >>> round(value_at([(1.5, 40.0), (2.5, 20.0)], 2.0, True), 1)
    28.7
    >>> value_at([(1.0, 40.0), (4.0, 20.0)], 2.0, True)
    20.0
    >>> value_at([(3.0, 20.0)], 2.0, True), value_at([(3.0, 20.0)], 4.0, True)
    (20.0, None)
    >>> value_at([(1.998, 20.0)], 2.0, True)
    20.0
    """
    sign = 1 if higher_is_better else -1
    found = [sign * value for reached, value in points if reached >= REACHED * speedup]
    for (slow, first), (fast, last) in itertools.pairwise(points):
        if slow < speedup < fast and are_neighbours(slow, fast):
            share = math.log(speedup / slow) / math.log(fast / slow)
            found.append(sign * (first + share * (last - first)))
    return sign * max(found) if found else None


def are_neighbours(slow: float, fast: float) -> bool:
    """Whether two speed-ups are near enough to say what lies between them."""
    return fast <= slow * FURTHEST_APART


def _compared(variants: Sequence[Mapping[str, Any]], axis: Axis, speedup: float, metric: str) -> Compared:
    higher = HIGHER_IS_BETTER[metric]
    ours = best_of([variant for variant in variants if variant["ours"]], axis, speedup, metric)
    rival = best_of([variant for variant in variants if not variant["ours"]], axis, speedup, metric)
    fewer = best_of([variant for variant in variants if variant["name"] == FEWER_STEPS_NAME], axis, speedup, metric)
    margin = None
    if ours is not None and rival is not None:
        margin = (ours.value - rival.value) * (1 if higher else -1)
    won = ours is not None and (margin is None or margin >= 0)
    return Compared(rival, None if fewer is None else fewer.value, ours, won, margin)


def best_of(variants: Sequence[Mapping[str, Any]], axis: Axis, speedup: float, metric: str) -> Best | None:
    """The best of several methods at a speed-up; None if none gets that fast."""
    higher = HIGHER_IS_BETTER[metric]
    found = []
    for name, points in curves_of(variants, axis, metric).items():
        value = value_at(points, speedup, higher)
        if value is not None:
            found.append(Best(name, value))
    return max(found, key=lambda best: best.value * (1 if higher else -1), default=None)
