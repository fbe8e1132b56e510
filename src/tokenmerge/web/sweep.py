"""The tab "Sweep": methods at several ratios, as a plot of quality against time and as a grid of pictures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from tokenmerge.errors import TokenMergeError
from tokenmerge.evaluation.figures.drawing import look_of, new_figure, styled, to_svg
from tokenmerge.evaluation.figures.grids import data_url
from tokenmerge.fidelity import Fidelity, fidelity
from tokenmerge.generation import Picture
from tokenmerge.methods.named import named_config
from tokenmerge.web.runs import Shot, Watch, sentence_of

if TYPE_CHECKING:
    from tokenmerge.web.runs import Studio

THUMBNAIL = 256  # pixels
HIGHEST_PSNR = 60.0  # where identical images, whose PSNR is infinite, are drawn


@dataclass(frozen=True)
class Cell:
    """One method at one ratio: its picture, or why there is none."""

    method: str
    ratio: float
    shot: Shot | None = None
    fidelity: Fidelity | None = None
    reason: str = ""


@dataclass(frozen=True)
class Swept:
    """A sweep as far as it has come."""

    unmerged: Shot
    cells: tuple[Cell, ...] = ()


def sweep(
    studio: Studio, model: str, picture: Picture, pairs: Sequence[tuple[str, float]], watch: Watch
) -> Iterator[Swept]:
    """Draw the unmerged picture and every pair, giving what there is after each. A pair that cannot be is skipped."""
    share = 1 / (len(pairs) + 1)
    swept = Swept(studio.unmerged(model, picture, watch.within(0, share)))
    yield swept
    for index, (method, ratio) in enumerate(pairs, start=1):
        part = watch.within(index * share, (index + 1) * share)
        try:
            shot = studio.merged(model, picture, named_config(method, ratio), method, part)
        except TokenMergeError as error:
            cell = Cell(method, ratio, reason=sentence_of(error))
        else:
            cell = Cell(method, ratio, shot, fidelity(swept.unmerged.image, shot.image))
        swept = Swept(swept.unmerged, (*swept.cells, cell))
        yield swept


def draw_quality_against_time(swept: Swept) -> str:
    """SVG: a line per method, from its lowest ratio to its highest; the dashed line is the unmerged time."""
    names = list(dict.fromkeys(cell.method for cell in swept.cells))
    with styled():
        figure = new_figure(5.6, 4.0)
        panel = figure.subplots()
        for name in names:
            line = [cell for cell in swept.cells if cell.method == name and cell.shot and cell.fidelity]
            times = [cell.shot.seconds for cell in line if cell.shot]
            values = [_psnr(cell.fidelity) for cell in line if cell.fidelity]
            panel.plot(times, values, label=name, markersize=6, **look_of(name, names))
            for cell, time, value in zip(line, times, values, strict=True):
                label = {"textcoords": "offset points", "xytext": (6, 4), "fontsize": 8, "color": "#666666"}
                panel.annotate(f"{cell.ratio:g}", (time, value), **label)
        panel.axvline(swept.unmerged.seconds, color="#444444", linestyle="--", linewidth=1, label="unmerged")
        panel.set_xlabel("seconds per picture (left is faster)")
        panel.set_ylabel("PSNR in dB (up is closer)")
        panel.margins(0.12)
        panel.set_xlim(left=0)
        figure.legend(loc="outside lower center", ncols=min(3, len(names) + 1), fontsize=9)
        return to_svg(figure)


def draw_grid(swept: Swept) -> str:
    """HTML: the unmerged picture, then a row of pictures per method. Rows wrap where the page is narrow."""
    first = _figure(swept.unmerged.image, "nothing merged", f"{swept.unmerged.seconds:.2f} s")
    rows = [f'<div class="tm-row"><h4>unmerged</h4><div class="tm-cells">{first}</div></div>']
    for method in dict.fromkeys(cell.method for cell in swept.cells):
        cells = "".join(_cell(cell, swept.unmerged) for cell in swept.cells if cell.method == method)
        rows.append(f'<div class="tm-row"><h4>{html.escape(method)}</h4><div class="tm-cells">{cells}</div></div>')
    return f'<div class="tm-grid">{"".join(rows)}</div>'


def _cell(cell: Cell, unmerged: Shot) -> str:
    title = f"ratio {cell.ratio:g}"
    if cell.shot is None or cell.fidelity is None:
        return f'<figure class="tm-none"><p>{html.escape(cell.reason)}</p><figcaption>{title}</figcaption></figure>'
    psnr = "identical" if cell.fidelity.psnr is None else f"{cell.fidelity.psnr:.1f} dB"
    speed = f"{unmerged.seconds / cell.shot.seconds:.2f}x"
    return _figure(cell.shot.image, title, f"{speed}, {psnr}", f"{cell.shot.seconds:.2f} s")


def _figure(image: Image.Image, title: str, *remarks: str) -> str:
    lines = "".join(f"<br>{html.escape(remark)}" for remark in remarks)
    return (
        f'<figure><img src="{data_url(image, THUMBNAIL)[0]}" alt="{html.escape(title)}">'
        f"<figcaption><b>{html.escape(title)}</b>{lines}</figcaption></figure>"
    )


def _psnr(value: Fidelity) -> float:
    return HIGHEST_PSNR if value.psnr is None else min(value.psnr, HIGHEST_PSNR)
