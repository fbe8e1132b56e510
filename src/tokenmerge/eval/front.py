"""The README's table: ours against fewer steps, caches and ToMeSD at equal speed, from the fronts that are committed.

python -m tokenmerge.eval.front                     print it
python -m tokenmerge.eval.front README.md           write it between the file's marks
python -m tokenmerge.eval.front README.md --check   fail if the file does not hold it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from tokenmerge.eval.columns import COLUMNS
from tokenmerge.eval.front_cells import best_of, cells_of, pixels_of
from tokenmerge.eval.variants import FEWER_STEPS_NAME
from tokenmerge.runtime import marked

FOLDER = Path("benchmarks/evaluation")
SPEEDUPS = (1.5, 2.0, 3.0)
TOMESD = "tomesd"
NOT_THAT_FAST = "–"
NO_FRONT = "No front is committed: run an `experiments/front_*.toml` into `benchmarks/evaluation/front-...`."
DIGITS = {column.metric: column.digits for column in COLUMNS}


def front_table() -> str:
    """A row for each front and speed-up: PSNR and LPIPS of the best setting of each kind of method."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("front*/metrics.json"))]
    rows = [row for run in found if cells_of(run) for row in _rows(run)]
    if not rows:
        return NO_FRONT
    heads = ["model", "steps", "speed-up", "tokenmerge", "fewer steps", "best cache", "ToMeSD"]
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _rows(run: Mapping[str, Any]) -> list[list[str]]:
    variants = [variant for variant in run["variants"] if variant["config"] is not None]
    kinds: dict[str, list[Mapping[str, Any]]] = {"ours": [], FEWER_STEPS_NAME: [], "caches": [], TOMESD: []}
    for variant in variants:
        kinds[_kind(variant)].append(variant)
    model, steps = f"`{run['model']}`, {pixels_of(run['image'])} px", str(run["image"]["steps"])
    return [
        [model, steps, f"{speedup:g}x", *(_quality(of_kind, speedup) for of_kind in kinds.values())]
        for speedup in SPEEDUPS
    ]


def _kind(variant: Mapping[str, Any]) -> str:
    if variant["ours"]:
        return "ours"
    return variant["name"] if variant["name"] in (FEWER_STEPS_NAME, TOMESD) else "caches"


def _quality(variants: Sequence[Mapping[str, Any]], speedup: float) -> str:
    """PSNR and LPIPS at a speed-up in executed multiply-adds, which no busy machine can change."""
    psnr, lpips = (best_of(variants, "multiply-adds", speedup, metric) for metric in ("psnr", "lpips"))
    if psnr is None or lpips is None:
        return NOT_THAT_FAST
    return f"{psnr.value:.1f} dB, {lpips.value:.{DIGITS['lpips'] - 1}f}"


if __name__ == "__main__":
    sys.exit(marked.main("tokenmerge.eval.front", "front", front_table))
