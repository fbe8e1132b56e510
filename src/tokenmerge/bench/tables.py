"""Results as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from tokenmerge.bench.contenders import PACKAGE
from tokenmerge.bench.result import Measurement, Result
from tokenmerge.bench.summary import summarise


def table_of(result: Result) -> str:
    """The whole of one result."""
    return {"model": _model_table, "ops": _ops_table, "scaling": _scaling_table}[result.kind](result)


def title_of(result: Result) -> str:
    """What was measured, in one line."""
    asked = result.settings
    if result.kind == "ops":
        return f"Operations alone, batch {asked['batch']}, {asked['dtype']}"
    if result.kind == "scaling":
        return f"One {asked['channels']}-channel block of SDXL, batch {asked['batch']}, {asked['dtype']}"
    return ", ".join(
        [f"{asked['model']}, {_size(asked)} px, batch {asked['batch']}, {asked['dtype']}", *_changes(asked)]
    )


def _what(asked: Mapping[str, Any]) -> str:
    return ", ".join([asked["model"], *_changes(asked)])


def _changes(asked: Mapping[str, Any]) -> list[str]:
    """How a run differs from the defaults of the model and the methods."""
    blocks = asked.get("blocks")
    cut = [f"cut to {' + '.join(map(str, blocks))} blocks"] if blocks else []
    compiled = [f"{asked['compile']} compiled"] if asked.get("compile") else []
    return [*cut, *asked.get("set", []), *compiled]


def machine_line(result: Result) -> str:
    """Where and when, in one line."""
    machine = result.machine
    where = machine["accelerator"] or f"{machine['cpu']}, {machine['threads']} threads"
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "diffusers"))
    return f"{where}; {versions}; {result.date[:10]}"


def _model_table(result: Result) -> str:
    headers = ["method", "ratio", "s a step (best)", "median", "speed-up (best)", "median", "of removable"]
    headers += [
        "over lower bound",
        "s to select",
        "s for weights",
        "s steady",
        "s full",
        "multiply-adds",
        "peak memory",
    ]
    rows = []
    for row in summarise(result.measurements):
        best, median = row.best, row.median
        rows.append(
            [row.measurement.method, _ratio(row.measurement), _seconds(best.mean), _seconds(median.mean)]
            + [_times(best.speedup), _times(median.speedup), _percent(best.removed), _more(row.over_bound)]
            + [_seconds(best.steps.get(phase)) for phase in ("select", "weights", "steady", "full")]
            + [_scaled(row.multiply_adds, 1e9, "G"), _scaled(row.measurement.peak_memory, 1e6, "MB")]
        )
    return _markdown(headers, rows)


def _scaling_table(result: Result) -> str:
    headers = ["image", "tokens", "method", "ratio", "ms a step (best)", "median", "speed-up (best)"]
    headers += ["merging itself", "over lower bound"]
    rows = []
    for row in summarise(result.measurements):
        case = row.measurement.case
        rows.append(
            [
                f"{case['pixels']} px",
                case["tokens"],
                row.measurement.method,
                _ratio(row.measurement),
                _milliseconds(row.best.mean),
                _milliseconds(row.median.mean),
                _times(row.best.speedup),
                _percent(row.overhead),
                _more(row.over_bound),
            ]
        )
    return _markdown(headers, rows)


def _ops_table(result: Result) -> str:
    operations = ("select", "weights", "reorder", "merge", "unmerge")
    headers = ["tokens", "channels", "ratio", "method", *(f"{name} (ms)" for name in operations)]
    headers += ["merge + unmerge against tomesd (best)", "median"]
    rows = []
    for measurement in (each for each in result.measurements if each.repeats):
        peer = next(
            (
                other
                for other in result.measurements
                if other.method == PACKAGE and (other.ratio, other.case) == (measurement.ratio, measurement.case)
            ),
            None,
        )
        rows.append(
            [measurement.case["tokens"], measurement.case["channels"], _ratio(measurement), measurement.method]
            + [
                _milliseconds(min(measurement.times[name]) if name in measurement.times else None)
                for name in operations
            ]
            + [
                _times(_round_trip(peer, reduce) / _round_trip(measurement, reduce) if peer and peer.repeats else None)
                for reduce in (min, statistics.median)
            ]
        )
    return _markdown(headers, rows)


def _round_trip(measurement: Measurement, reduce: Any) -> float:
    return float(reduce(measurement.times["merge"]) + reduce(measurement.times["unmerge"]))


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    # A column that nothing was measured for says nothing.
    used = [column for column, _ in enumerate(headers) if any(row[column] != "" for row in rows)]
    headers, rows = [headers[column] for column in used], [[row[column] for column in used] for row in rows]
    sides = ["left" if header in ("method", "model", "image") else "right" for header in headers]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=sides) if rows else "(no results)"


def _size(settings: dict[str, Any]) -> str:
    height, width = settings["size"]
    return str(height) if height == width else f"{width}x{height}"


def _ratio(measurement: Measurement) -> str:
    return "" if measurement.ratio is None else f"{measurement.ratio:g}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value * 1000:.2f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _more(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def _scaled(value: float | None, unit: float, name: str) -> str:
    return "" if value is None else f"{value / unit:,.1f} {name}"
