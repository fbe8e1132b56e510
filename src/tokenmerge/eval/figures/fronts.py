"""One front for a model: quality against speed-up, ours and every rival, a column for each number of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tokenmerge.eval.columns import COLUMNS
from tokenmerge.eval.figures.plotting import look_of, new_figure, styled
from tokenmerge.eval.front_cells import METRICS, Axis, are_neighbours, curves_of, pixels_of
from tokenmerge.eval.variants import FEWER_STEPS_NAME

TITLES = {column.metric: f"{column.title} {column.arrow}" for column in COLUMNS}
GAP = (math.nan, math.nan)
WIDEST = 4.5  # speed-ups shown; faster settings of rivals are off the comparison


def front_figure(runs: Sequence[Mapping[str, Any]], axis: Axis) -> Any:
    """A matplotlib figure of runs of one model, as their metrics.json have them."""
    runs = sorted(runs, key=lambda run: (run["image"]["width"], run["image"]["steps"]))
    names = _names(runs)
    with styled():
        figure = new_figure(4.4 * len(runs) + 0.4, 3.4 * len(METRICS) + 1.0)
        panels = figure.subplots(len(METRICS), len(runs), squeeze=False)
        for row, metric in enumerate(METRICS):
            for column, run in enumerate(runs):
                _panel(panels[row][column], run, axis, metric, names)
        figure.suptitle(f"{runs[0]['model']}: distance to the unmodified image at equal speed", fontsize=11)
        handles = {
            label: handle
            for panel in panels.ravel()
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        order = [name for name in names if name in handles]
        columns = 5 if len(runs) > 1 else 2
        figure.legend([handles[name] for name in order], order, loc="outside lower center", ncols=columns, fontsize=9)
        return figure


def _broken(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points with a gap in the line wherever two settings are too far apart to say what lies between them."""
    line = list(points[:1])
    for before, point in pairwise(points):
        line += [point] if are_neighbours(before[0], point[0]) else [GAP, point]
    return line


def _names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ours first, then the rivals: the same look for a method in every panel. Fewer steps have another look."""
    listed = [variant for run in runs for variant in run["variants"] if variant["config"] is not None]
    first = [variant["name"] for variant in listed if variant["ours"]]
    others = [variant["name"] for variant in listed if not variant["ours"]]
    named = [name for name in dict.fromkeys([*first, *others]) if name != FEWER_STEPS_NAME]
    return [*named, FEWER_STEPS_NAME]


def _panel(panel: Any, run: Mapping[str, Any], axis: Axis, metric: str, names: Sequence[str]) -> None:
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullFormatter, NullLocator

    variants = [variant for variant in run["variants"] if variant["config"] is not None]
    ours = {variant["name"] for variant in variants if variant["ours"]}
    for name, points in curves_of(variants, axis, metric).items():
        shown = _broken([point for point in points if point[0] <= WIDEST])
        look = look_of(name, names)
        if name in ours:
            look |= {"linewidth": 2.6, "markersize": 8, "zorder": 5}
        elif name == FEWER_STEPS_NAME:
            look |= {"color": "#111111", "linestyle": "--", "linewidth": 1.8, "markersize": 5, "zorder": 4}
        else:
            look |= {"linewidth": 1.1, "markersize": 5, "alpha": 0.9}
        panel.plot([speedup for speedup, _ in shown], [value for _, value in shown], label=name, **look)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(FixedLocator([1, 1.25, 1.5, 2, 3, 4]))
    panel.xaxis.set_major_formatter(FormatStrFormatter("%gx"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlim(1, WIDEST)
    panel.set_xlabel(f"speed-up in {axis}")
    image = run["image"]
    panel.set_title(f"{TITLES[metric]}, {image['steps']} steps, {pixels_of(image)} px", fontsize=10)
