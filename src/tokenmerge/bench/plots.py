"""Plots of results, with matplotlib where it is installed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenmerge.bench.contenders import BOUND, LIMIT, NONE, PACKAGE
from tokenmerge.bench.result import Result
from tokenmerge.bench.summary import Row, summarise
from tokenmerge.bench.tables import title_of
from tokenmerge.errors import UsageError

FORMATS = (".svg", ".png", ".pdf")
# One colour for a method in every figure; those that are not named take what is left.
COLOURS = {
    NONE: "#7f7f7f",
    PACKAGE: "#1f77b4",
    "toma": "#d62728",
    "toma-stack": "#ff7f0e",
    BOUND: "#bcbd22",
    "toma tile 4x4": "#d62728",
    "toma tile 8x8": "#ff7f0e",
    "toma stripe": "#2ca02c",
    "toma global": "#9467bd",
}
STYLES = ("-", "--", ":", "-.")  # one for each ratio
OTHERS = ("#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf")


def require_plotting(path: Path) -> None:
    """Raise an error if nothing could be plotted: better before hours of measuring than after."""
    if path.suffix not in FORMATS:
        raise UsageError(f"--plot is {str(path)!r}: its name must end in {', '.join(FORMATS)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "--plot needs matplotlib: install it with `pip install matplotlib`, or leave --plot out."
        ) from None


def plot(result: Result, path: Path) -> None:
    """Plot one result into a file."""
    import matplotlib

    matplotlib.use("Agg")
    # The same figures make the same file, byte for byte.
    matplotlib.rcParams["svg.hashsalt"] = "tokenmerge"
    from matplotlib import pyplot

    figure = pyplot.figure(layout="constrained")
    {"model": _plot_model, "ops": _plot_ops, "scaling": _plot_scaling}[result.kind](figure, result)
    figure.suptitle(title_of(result))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _plot_model(figure: Any, result: Result) -> None:
    """A panel for each ratio: a bar for each method, and where the limit is."""
    rows = summarise(result.measurements)
    limit = next((row.best.speedup for row in rows if row.measurement.method == LIMIT), None)
    merged = [row for row in rows if row.measurement.ratio is not None]
    panels = {ratio: [row for row in merged if row.measurement.ratio == ratio] for ratio in _ratios(merged)}
    colours = _colours(row.measurement.method for row in merged)
    most = max(map(len, panels.values()), default=1)
    figure.set_size_inches(1 + 4 * max(1, len(panels)), 1.6 + 0.4 * most)
    every = figure.subplots(1, max(1, len(panels)), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (ratio, shown) in zip(every, panels.items(), strict=False):
        names = [row.measurement.method for row in shown]
        bars = axes.barh(names, [row.best.speedup for row in shown], color=[colours[name] for name in names])
        axes.bar_label(bars, [f" {row.best.speedup:.2f}x" for row in shown])
        axes.plot([row.median.speedup for row in shown], names, "|", color="black", markersize=14, label="median")
        if limit is not None:
            axes.axvline(limit, color="black", linestyle="--", label="limit: blocks deleted")
        axes.axvline(1, color="grey", linewidth=1)
        axes.set_title(f"{ratio:.0%} of tokens merged away", fontsize="medium")
        axes.set_xlabel("speed-up (best of all repeats)")
    every[0].invert_yaxis()
    every[0].set_xlim(0, 1.15 * max([limit or 1, *(row.best.speedup or 1 for row in merged)]))
    _legend_below(figure, every[0])


def _plot_scaling(figure: Any, result: Result) -> None:
    """Seconds over tokens, both logarithmic, a line for each method and ratio."""
    figure.set_size_inches(7, 4.8)
    axes = figure.subplots()
    rows = summarise(result.measurements)
    colours = _colours(row.measurement.method for row in rows)
    for method in dict.fromkeys(row.measurement.method for row in rows):
        for style, ratio in zip(
            STYLES, _ratios([row for row in rows if row.measurement.method == method]), strict=False
        ):
            points = [row for row in rows if (row.measurement.method, row.measurement.ratio) == (method, ratio)]
            axes.loglog(
                [row.measurement.case["tokens"] for row in points],
                [row.best.mean for row in points],
                f"o{style}",
                color=colours[method],
                label=method if ratio is None else f"{method}, ratio {ratio:g}",
            )
    cases = {row.measurement.case["tokens"]: row.measurement.case["pixels"] for row in rows}
    axes.set_xticks(list(cases), [f"{pixels} px\n{tokens:,}" for tokens, pixels in cases.items()])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("image, and its tokens")
    axes.set_ylabel("seconds a step (best of all repeats)")
    axes.grid(alpha=0.3)
    _legend_below(figure, axes)


def _plot_ops(figure: Any, result: Result) -> None:
    """A panel for each number of tokens and channels: milliseconds over the ratio, a line for each method."""
    measured = [each for each in result.measurements if each.repeats and each.ratio is not None]
    cases = list(dict.fromkeys((each.case["tokens"], each.case["channels"]) for each in measured))
    colours = _colours(each.method for each in measured)
    figure.set_size_inches(1 + 3.6 * max(1, len(cases)), 4.8)
    every = figure.subplots(1, max(1, len(cases)), sharey=True, squeeze=False)[0]
    for axes, (tokens, channels) in zip(every, cases, strict=False):
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in measured:
            if (each.case["tokens"], each.case["channels"]) == (tokens, channels):
                seconds = min(each.times["merge"]) + min(each.times["unmerge"])
                lines[each.method].append((each.ratio or 0, seconds * 1000))
        for method, points in lines.items():
            axes.semilogy(*zip(*points, strict=True), "o-", color=colours[method], label=method)
        axes.set_xticks(sorted({ratio for points in lines.values() for ratio, _ in points}))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(f"{tokens:,} tokens of {channels} channels", fontsize="medium")
        axes.set_xlabel("fraction of tokens merged away")
        axes.grid(alpha=0.3)
    every[0].set_ylabel("ms to merge and unmerge (best of all repeats)")
    _legend_below(figure, every[0])


def _legend_below(figure: Any, axes: Any) -> None:
    """Where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))), fontsize="small")


def _colours(methods: Iterable[str]) -> dict[str, str]:
    named = dict.fromkeys(methods)
    others = itertools.cycle(OTHERS)
    return {method: COLOURS.get(method) or next(others) for method in named}


def _ratios(rows: Sequence[Row]) -> list[float | None]:
    return list(dict.fromkeys(row.measurement.ratio for row in rows))
