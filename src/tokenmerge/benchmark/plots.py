"""Plots of results, with matplotlib where it is installed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmerge.benchmark.contenders import LIMIT, NONE
from tokenmerge.benchmark.result import Result
from tokenmerge.benchmark.summary import Row, summarise
from tokenmerge.benchmark.tables import title_of
from tokenmerge.errors import UsageError

FORMATS = (".svg", ".png", ".pdf")


def require_plotting(path: Path) -> None:
    """Raise a sentence where a plot could not be drawn: better before hours of measuring than after."""
    if path.suffix not in FORMATS:
        raise UsageError(f"--plot is {str(path)!r}: its name must end in {', '.join(FORMATS)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "--plot needs matplotlib: install it with `pip install matplotlib`, or leave --plot out."
        ) from None


def plot(result: Result, path: Path) -> None:
    """Draw one result into a file."""
    import matplotlib

    matplotlib.use("Agg")
    # The same figures make the same file, byte for byte.
    matplotlib.rcParams["svg.hashsalt"] = "tokenmerge"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    {"model": _plot_model, "ops": _plot_ops, "scaling": _plot_scaling}[result.kind](axes, result)
    axes.set_title(title_of(result))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _plot_model(axes: Any, result: Result) -> None:
    rows = summarise(result.measurements)
    for row in rows:
        if row.measurement.method == LIMIT:
            axes.axhline(row.best.speedup, color="black", linestyle="--", label="limit: blocks deleted")
    for method, points in _by_method(rows).items():
        axes.plot([row.measurement.ratio for row in points], [row.best.speedup for row in points], "o-", label=method)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set_xlabel("fraction of tokens merged away")
    axes.set_ylabel("speed-up over the unmerged model")


def _plot_scaling(axes: Any, result: Result) -> None:
    rows = summarise(result.measurements)
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        ratio = row.measurement.ratio
        lines[row.measurement.method if ratio is None else f"{row.measurement.method} {ratio:g}"].append(row)
    for label, points in lines.items():
        axes.loglog(
            [row.measurement.case["tokens"] for row in points], [row.best.mean for row in points], "o-", label=label
        )
    cases = {row.measurement.case["tokens"]: row.measurement.case["pixels"] for row in rows}
    axes.set_xticks(list(cases), [f"{pixels} px\n{tokens:,}" for tokens, pixels in cases.items()])
    axes.minorticks_off()
    axes.set_xlabel("image, and its tokens")
    axes.set_ylabel("seconds a step")


def _plot_ops(axes: Any, result: Result) -> None:
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for measurement in result.measurements:
        if measurement.repeats and measurement.ratio is not None:
            seconds = min(measurement.times["merge"]) + min(measurement.times["unmerge"])
            lines[f"{measurement.method}, {measurement.case['tokens']} tokens"].append(
                (measurement.ratio, seconds * 1000)
            )
    for label, points in lines.items():
        axes.semilogy(*zip(*points, strict=True), "o-", label=label)
    axes.set_xlabel("fraction of tokens merged away")
    axes.set_ylabel("ms to merge and unmerge")


def _by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.measurement.method not in (NONE, LIMIT):
            grouped[row.measurement.method].append(row)
    return grouped
