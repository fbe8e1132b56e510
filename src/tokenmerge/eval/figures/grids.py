"""Images side by side: the ratios of a variant, and the variants at a ratio (paper Figs. 6-7, thesis tables 1-6)."""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, features

from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import Record
from tokenmerge.eval.variants import BASELINE, Variant, slug

ROWS = 4
CELL = 192  # pixels
GAP = 6
LINE = 15  # of a column's head
LETTERS = 26  # that fit above a cell


def grids_of(
    folder: Path, pairs: Sequence[Pair], variants: Sequence[Variant], records: dict[tuple[str, str], Record]
) -> dict[str, tuple[str, str]]:
    """Caption and SVG by file name: for each variant with several ratios, and each ratio with several variants."""
    sets: dict[str, tuple[str, list[Variant]]] = {}
    for variant in variants[1:]:
        by_ratio = sets.setdefault(f"grid-{slug(variant.name)}", (f"{variant.name} by setting", []))
        by_ratio[1].append(variant)
        if variant.ratio is not None:  # it may change over steps or blocks
            by_variant = sets.setdefault(f"grid-r{variant.ratio:g}", (f"Variants at r = {variant.ratio:g}", []))
            by_variant[1].append(variant)
    rows = min(ROWS, len(pairs))
    chosen = [pairs[index * len(pairs) // rows] for index in range(rows)]
    return {
        name: (caption, _grid(folder, chosen, [BASELINE, *columns], records))
        for name, (caption, columns) in sets.items()
        if len(columns) > 1
    }


def _grid(
    folder: Path, pairs: Sequence[Pair], columns: Sequence[Variant], records: dict[tuple[str, str], Record]
) -> str:
    width = len(columns) * (CELL + GAP) - GAP
    heads = [textwrap.wrap("unmerged" if v is BASELINE else v.label, LETTERS) for v in columns]
    lines = max(map(len, heads))
    cells, top, tallest = [], lines * LINE + 11, 0
    for column, head in enumerate(heads):
        for line, text in enumerate(head, start=lines - len(head)):
            place = f'x="{column * (CELL + GAP) + CELL / 2}" y="{17 + line * LINE}"'
            cells.append(f'<text {place} text-anchor="middle">{html.escape(text)}</text>')
    for pair in pairs:
        for column, variant in enumerate(columns):
            data, shape = embedded(folder / records[variant.key, pair.id].file, CELL)
            tallest = round(CELL * shape[1] / shape[0])
            title = html.escape(f"{pair.prompt} (seed {pair.seed}): {variant.label}")
            place = f'x="{column * (CELL + GAP)}" y="{top}" width="{CELL}" height="{tallest}"'
            cells.append(f'<image {place} href="{data}"><title>{title}</title></image>')
        cells.append(
            f'<text class="prompt" x="0" y="{top + tallest + 13}">{html.escape(_short(pair.prompt, width))}</text>'
        )
        top += tallest + 20
    style = "text{font:12px 'DejaVu Sans',sans-serif;fill:#333}.prompt{font-size:10px;fill:#777}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(cells)}</svg>\n'
    )


def _short(prompt: str, width: int) -> str:
    longest = width // 6
    return prompt if len(prompt) <= longest else prompt[: longest - 1] + "…"


def embedded(path: Path, longest_side: int, quality: int = 88) -> tuple[str, tuple[int, int]]:
    """An image file as a data URL of at most this many pixels a side, and its size."""
    with Image.open(path) as image:
        return data_url(image, longest_side, quality)


def data_url(image: Image.Image, longest_side: int, quality: int = 88) -> tuple[str, tuple[int, int]]:
    """An image as a data URL of at most this many pixels a side, and its size."""
    small = image.convert("RGB")
    small.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    kind = "webp" if features.check("webp") else "jpeg"
    buffer = io.BytesIO()
    small.save(buffer, format=kind, quality=quality)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}", small.size
