"""Quality against time (paper Fig. 5), and quality and time against the ratio (thesis Figs. 5-11)."""

from __future__ import annotations

from typing import Any

from tokenmerge.eval.columns import COLUMNS, Column
from tokenmerge.eval.figures.plotting import look_of, new_figure, styled, to_svg
from tokenmerge.eval.results import Results, VariantResult


def quality_against_time(results: Results) -> str | None:
    """One panel per metric; a line per variant, from its smallest ratio to its largest."""
    columns = _measured(results)
    if not columns:
        return None
    across = min(3, len(columns))
    down = -(-len(columns) // across)
    with styled():
        figure = new_figure(4.2 * across, 3.3 * down + 0.6)
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for panel, column in zip(panels, columns, strict=False):
            for name, line in _lines(results).items():
                points = [v for v in line if column.metric in v.metrics]
                times = [v.timing.median for v in points]
                values = [v.metrics[column.metric].value for v in points]
                panel.plot(times, values, label=name, markersize=5, **look_of(name, _names(results)))
                for variant, time, value in zip(points, times, values, strict=True):
                    if variant.ratio is not None and len(points) < 5:
                        offset = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 7, "color": "#666666"}
                        panel.annotate(f"{variant.ratio:g}", (time, value), **offset)
            baseline = results.variants[0]
            panel.axvline(baseline.timing.median, color="#444444", linestyle="--", linewidth=1, label="unmerged")
            if column.metric in baseline.metrics:
                panel.axhline(baseline.metrics[column.metric].value, color="#444444", linestyle=":", linewidth=1)
            _name_axes(panel, "median seconds per image", column)
            _spread_times(panel, [variant.timing.median for variant in results.variants])
        _finish(figure, panels, len(columns))
        return to_svg(figure)


def quality_and_time_against_ratio(results: Results) -> str | None:
    """FID and relative time against r, as the thesis has them; PSNR too, which needs fewer images."""
    ratios = {variant.ratio for variant in results.variants} - {None}
    if len(ratios) < 2:
        return None
    columns = [column for column in _measured(results) if column.metric in ("fid", "psnr")]
    with styled():
        figure = new_figure(4.2 * (len(columns) + 1), 3.9)
        panels = figure.subplots(1, len(columns) + 1, squeeze=False).ravel()
        for panel, column in zip(panels, columns, strict=False):
            for name, line in _lines(results).items():
                points = [v for v in line if v.ratio is not None and column.metric in v.metrics]
                _interval_line(panel, points, [v.metrics[column.metric] for v in points], name, results)
            _name_axes(panel, "r: fraction of tokens merged away", column)
        for name, line in _lines(results).items():
            points = [v for v in line if v.ratio is not None]
            relative = [100 * v.timing.relative for v in points]
            panels[-1].plot([v.ratio for v in points], relative, label=name, **look_of(name, _names(results)))
        panels[-1].axhline(100, color="#444444", linestyle="--", linewidth=1)
        panels[-1].set_xlabel("r: fraction of tokens merged away")
        panels[-1].set_title("time, % of unmerged ↓", fontsize=10)
        _finish(figure, panels, len(panels))
        return to_svg(figure)


def _interval_line(panel: Any, points: list[VariantResult], estimates: list[Any], name: str, results: Results) -> None:
    look = look_of(name, _names(results))
    ratios = [v.ratio for v in points]
    panel.plot(ratios, [e.value for e in estimates], label=name, markersize=5, **look)
    panel.fill_between(
        ratios, [e.low for e in estimates], [e.high for e in estimates], color=look["color"], alpha=0.15, linewidth=0
    )


def _measured(results: Results) -> list[Column]:
    return [column for column in COLUMNS if any(column.metric in v.metrics for v in results.variants[1:])]


def _names(results: Results) -> list[str]:
    return list(dict.fromkeys(variant.name for variant in results.variants))[1:]


def _lines(results: Results) -> dict[str, list[VariantResult]]:
    return {
        name: sorted((v for v in results.variants if v.name == name), key=lambda v: (v.ratio or 0, v.saved))
        for name in _names(results)
    }


def _name_axes(panel: Any, below: str, column: Column) -> None:
    panel.set_xlabel(below)
    panel.set_title(f"{column.title} {column.arrow}", fontsize=10)


def _spread_times(panel: Any, times: list[float]) -> None:
    """One variant that takes far longer than the rest must not push them together."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    if max(times) > 2.5 * min(times):
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 6, 8)))
        panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.xaxis.set_minor_formatter(NullFormatter())


def _finish(figure: Any, panels: Any, used: int) -> None:
    for panel in panels[used:]:
        panel.remove()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=9)
