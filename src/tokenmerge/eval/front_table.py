"""Cells of the fronts as Markdown and JSON, with the share that is won."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from tokenmerge.eval.columns import COLUMNS, shown
from tokenmerge.eval.front_cells import AXES, METRICS, Axis, Best, Cell, Compared

DIGITS = {column.metric: column.digits for column in COLUMNS}
TITLES = {column.metric: column.title for column in COLUMNS}


def summary_of(cells: Sequence[Cell], axis: Axis) -> dict[str, Any]:
    """How many cells of an axis are won, and the largest distance to the best rival in a lost one."""
    mine = [cell for cell in cells if cell.axis == axis]
    margins = [cell.metrics["psnr"].margin for cell in mine]
    return {
        "cells": len(mine),
        "won": sum(cell.won for cell in mine),
        "won_psnr": sum(cell.metrics["psnr"].won for cell in mine),
        "won_lpips": sum(cell.metrics["lpips"].won for cell in mine),
        "not_reached": sum(cell.metrics["psnr"].ours is None for cell in mine),
        "worst_psnr_margin": min((margin for margin in margins if margin is not None), default=None),
    }


def to_plain(cells: Sequence[Cell]) -> dict[str, Any]:
    """Everything as plain JSON values."""
    return {
        "summary": {axis: summary_of(cells, axis) for axis in AXES},
        "cells": [{**dataclasses.asdict(cell), "won": cell.won} for cell in cells],
    }


def front_text(cells: Sequence[Cell]) -> str:
    """A sentence on the share won and a table, for multiply-adds and for time."""
    return "\n\n".join(_axis_text(cells, axis) for axis in AXES)


def _axis_text(cells: Sequence[Cell], axis: Axis) -> str:
    summary = summary_of(cells, axis)
    worst = summary["worst_psnr_margin"]
    distance = "" if worst is None else f" Smallest PSNR margin to the best rival: {worst:+.2f} dB."
    text = (
        f"Speed-up in {axis}: {summary['won']} of {summary['cells']} cells won (PSNR {summary['won_psnr']}, LPIPS "
        f"{summary['won_lpips']}; ours not that fast in {summary['not_reached']}).{distance}"
    )
    rows = [_row(cell) for cell in cells if cell.axis == axis]
    heads = ["model", "px", "steps", "pairs", "speed-up"]
    for metric in METRICS:
        heads += [f"{TITLES[metric]}: best rival", "fewer steps", "ours", "margin"]
    return f"{text}\n\n{tabulate(rows, [*heads, 'won'], tablefmt='github', disable_numparse=True)}"


def _row(cell: Cell) -> list[str]:
    row = [cell.model, cell.pixels, str(cell.steps), str(cell.pairs), f"{cell.speedup:g}x"]
    for metric in METRICS:
        row += _compared(cell.metrics[metric], DIGITS[metric])
    return [*row, "yes" if cell.won else "no"]


def _compared(compared: Compared, digits: int) -> list[str]:
    fewer, margin = compared.fewer_steps, compared.margin
    return [
        _best(compared.rival, digits),
        "–" if fewer is None else shown(fewer, digits),
        _best(compared.ours, digits),
        "–" if margin is None else shown(margin, digits, sign=True),
    ]


def _best(best: Best | None, digits: int) -> str:
    return "–" if best is None else f"{shown(best.value, digits)} ({best.name})".replace("|", "\\|")
