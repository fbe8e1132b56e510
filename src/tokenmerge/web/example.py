"""A result that is part of the package: what the page shows before anything is generated.

`python -m tokenmerge.web.example FOLDER` takes it from a folder that `tokenmerge compare` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from PIL import Image

from tokenmerge.web import words

FOLDER = Path(__file__).with_name("example")
UNMERGED, MERGED, FACTS = "unmerged.webp", "merged.webp", "compare.json"


def images() -> tuple[Image.Image, Image.Image] | None:
    """The unmerged and the merged image; None in an installation without them."""
    if not (FOLDER / FACTS).is_file():
        return None
    return Image.open(FOLDER / UNMERGED), Image.open(FOLDER / MERGED)


def sentence() -> str:
    """What the two images are, and how long each took where they were made."""
    if not (FOLDER / FACTS).is_file():
        return words.NO_RESULT
    facts = json.loads((FOLDER / FACTS).read_text(encoding="utf-8"))
    threads = facts["threads"]
    # Images that are equal have no PSNR.
    shown = {
        "threads": f"{threads} thread{'' if threads == 1 else 's'}",
        "closeness": "identical" if facts["psnr"] is None else f"PSNR {facts['psnr']:.0f} dB",
    }
    return words.EXAMPLE_RESULT.format(**facts | shown)


def take(folder: Path) -> None:
    """Keep the result of a comparison as the example."""
    made = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    FOLDER.mkdir(exist_ok=True)
    for source, target in (("unmerged.png", UNMERGED), ("merged.png", MERGED)):
        with Image.open(folder / source) as image:
            image.save(FOLDER / target, lossless=True, quality=100, method=6)
    facts = {
        "model": made["model"]["name"],
        "prompt": made["prompt"],
        "seed": made["seed"],
        "steps": made["steps"],
        "config": made["config"],
        "unmerged": made["best"]["unmerged"],
        "merged": made["best"]["merged"],
        "speedup": made["speedup"]["best"],
        "psnr": made["psnr"],
        "threads": made["threads"],
        "device": made["model"]["device"],
    }
    (FOLDER / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    take(Path(sys.argv[1]))
