"""The README's first table: every method of the quality fronts in benchmarks/evaluation, the fastest first.

python -m tokenmerge.eval.front                     print it
python -m tokenmerge.eval.front README.md           write it between the file's marks
python -m tokenmerge.eval.front README.md --check   fail if the file does not hold it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tabulate import tabulate

from tokenmerge.errors import UsageError
from tokenmerge.eval.columns import COLUMNS
from tokenmerge.runtime import marked

FOLDERS = (Path("benchmarks/evaluation/front"), Path("benchmarks/evaluation/front-flux"))
SHOWN = ("psnr", "ssim", "lpips", "fid")


def front_tables() -> str:
    """A table per model, from the committed metrics and nothing else."""
    return "\n\n".join(map(_table_of, FOLDERS))


def _table_of(folder: Path) -> str:
    path = folder / "metrics.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Run this from the project's folder.") from None
    columns = [column for column in COLUMNS if column.metric in SHOWN]
    merged = [variant for variant in found["variants"] if variant["config"] is not None]
    rows = [
        [
            variant["name"],
            "" if variant["ratio"] is None else f"{variant['ratio']:g}",
            f"{variant['timing']['speedup']['value']:.2f}x",
            *(f"{variant['metrics'][column.metric]['value']:.{column.digits}f}" for column in columns),
        ]
        for variant in sorted(merged, key=_speedup, reverse=True)
    ]
    first = f"`{found['model']}`, {found['image']['steps']} steps"
    heads = [first, "r", "speed-up", *(f"{column.title} {column.arrow}" for column in columns)]
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _speedup(variant: dict[str, Any]) -> float:
    speedup: float = variant["timing"]["speedup"]["value"]
    return speedup


if __name__ == "__main__":
    sys.exit(marked.main("tokenmerge.eval.front", "front", front_tables))
