"""The table of docs/presets.md: the config that each preset stands for, by the kind of model."""

from __future__ import annotations

import sys

from tokenmerge.models.published import build
from tokenmerge.presets import NAMES, preset
from tokenmerge.runtime import marked
from tokenmerge.web.equivalent import constructor

KINDS = {
    "UNets: SD 1.x, 2.x, SDXL": "sdxl",
    "image transformers: Flux, SD3, Qwen-Image": "flux",
    "video transformers: Wan, LTX-Video, HunyuanVideo": "wan-1.3b",
}


def table() -> str:
    """A row for each kind of model, a column for each preset."""
    rows = [f"| model | {' | '.join(NAMES)} |", "|---" * (len(NAMES) + 1) + "|"]
    for title, name in KINDS.items():
        model = build(name)
        rows.append("| " + " | ".join([title, *(f"`{constructor(preset(each, model))}`" for each in NAMES)]) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(marked.main("docs._tools.presets", "presets", table))
