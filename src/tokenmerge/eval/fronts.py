"""Runs of `tokenmerge eval` side by side: who is ahead at equal speed, as a table, JSON, and a plot for each model.

python -m tokenmerge.eval.fronts benchmarks/evaluation/front-*/metrics.json --out benchmarks/front
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmerge.errors import TokenMergeError, UsageError
from tokenmerge.eval.figures.fronts import front_figure
from tokenmerge.eval.figures.plotting import to_svg
from tokenmerge.eval.front_cells import AXES, cells_of
from tokenmerge.eval.front_table import front_text, to_plain
from tokenmerge.runtime.files import write_atomically


def write_fronts(files: Sequence[Path], out: Path) -> str:
    """Write front.md, front.json and front-<model>-<axis>.svg and .png into a folder; the text of front.md."""
    runs = [_read(file) for file in files]
    cells = [cell for run in runs for cell in cells_of(run)]
    if not cells:
        raise UsageError(
            "none of these runs has methods of ours and rivals with PSNR and LPIPS: run an experiments/front_*.toml."
        )
    text = front_text(cells) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "front.md", text)
    write_atomically(out / "front.json", json.dumps(to_plain(cells), indent=1, ensure_ascii=False) + "\n")
    for model in dict.fromkeys(run["model"] for run in runs if cells_of(run)):
        mine = [run for run in runs if run["model"] == model and cells_of(run)]
        for axis in AXES:
            figure = front_figure(mine, axis)
            write_atomically(out / f"front-{model}-{axis}.svg", to_svg(figure))
            figure.savefig(out / f"front-{model}-{axis}.png", dpi=110, metadata={"Software": None})
    return text


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}. Give metrics.json files of runs.") from None
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tokenmerge.eval.fronts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="METRICS", type=Path, nargs="+", help="metrics.json of a run")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="where the results go")
    args = parser.parse_args(arguments)
    try:
        print(write_fronts(args.files, args.out))
    except TokenMergeError as error:
        print(f"tokenmerge.eval.fronts: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
