"""The tab "Sweep": methods at several ratios, as a plot of quality against time and as a grid of images."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from tokenmerge.errors import TokenMergeError
from tokenmerge.eval.figures.grids import data_url
from tokenmerge.eval.figures.plotting import look_of, new_figure, styled, to_svg
from tokenmerge.runtime.fidelity import Fidelity, fidelity
from tokenmerge.runtime.generation import ImageRequest
from tokenmerge.web.bounds import swept_acceleration
from tokenmerge.web.runs import Shot, Watch, sentence_of

if TYPE_CHECKING:
    from tokenmerge.web.runs import Studio

THUMBNAIL = 256  # pixels
HIGHEST_PSNR = 60.0  # where identical images, whose PSNR is infinite, are plotted


@dataclass(frozen=True)
class Cell:
    """One method at one ratio: its image, or why there is none."""

    method: str
    ratio: float | None  # None for what has none: presets, tiles, caches
    shot: Shot | None = None
    fidelity: Fidelity | None = None
    reason: str = ""
    unmerged_seconds: float = 0.0  # of the unmerged image generated right before its method

    @property
    def share(self) -> float:
        """Its time as a share of the unmerged time."""
        return self.shot.seconds / self.unmerged_seconds if self.shot else 0.0


@dataclass(frozen=True)
class Swept:
    """A sweep as far as it has come."""

    unmerged: tuple[Shot, ...]  # the same image, generated once before each method
    cells: tuple[Cell, ...] = ()


def sweep(
    studio: Studio, model: str, wanted: ImageRequest, pairs: Sequence[tuple[str, float | None]], watch: Watch
) -> Iterator[Swept]:
    """Generate every pair, and the unmerged image before each method, giving what there is after each pair.

    A machine is not equally fast all day: a time from an earlier moment would make speed-ups that nobody has seen. A
    pair that cannot be is skipped.
    """
    methods = list(dict.fromkeys(method for method, _ in pairs))
    count = len(pairs) + len(methods)
    stretches = (watch.within(index / count, (index + 1) / count) for index in range(count))
    swept = Swept(())
    for method in methods:
        unmerged = studio.unmerged_now(model, wanted, next(stretches))
        swept = Swept((*swept.unmerged, unmerged), swept.cells)
        if not swept.cells:
            yield swept
        for ratio in [ratio for name, ratio in pairs if name == method]:
            stretch = next(stretches)
            try:
                shot = studio.accelerated(
                    model, wanted, swept_acceleration(method, ratio), title(method, ratio), stretch
                )
            except TokenMergeError as error:
                cell = Cell(method, ratio, reason=sentence_of(error))
            else:
                cell = Cell(method, ratio, shot, fidelity(unmerged.image, shot.image), "", unmerged.seconds)
            swept = Swept(swept.unmerged, (*swept.cells, cell))
            yield swept


def title(method: str, ratio: float | None) -> str:
    """A method with its ratio, if it has one."""
    return method if ratio is None else f"{method}, ratio {ratio:g}"


def plot_quality_against_time(swept: Swept) -> str:
    """SVG: a line per method, from its lowest ratio to its highest; the dashed line is the unmerged time.

    Times are shares of the unmerged time of the same method, so that a method generated in a slow minute loses nothing.
    """
    names = list(dict.fromkeys(cell.method for cell in swept.cells))
    with styled():
        figure = new_figure(5.6, 4.0)
        panel = figure.subplots()
        for name in names:
            line = [cell for cell in swept.cells if cell.method == name and cell.shot and cell.fidelity]
            times = [100 * cell.share for cell in line]
            values = [min(cell.fidelity.finite_psnr, HIGHEST_PSNR) for cell in line if cell.fidelity]
            panel.plot(times, values, label=name, markersize=6, **look_of(name, names))
            for cell, time, value in zip(line, times, values, strict=True):
                label = {"textcoords": "offset points", "xytext": (6, 4), "fontsize": 8, "color": "#666666"}
                if cell.ratio is not None:
                    panel.annotate(f"{cell.ratio:g}", (time, value), **label)
        panel.axvline(100, color="#444444", linestyle="--", linewidth=1, label="unmerged")
        panel.set_xlabel("time in % of the unmerged image's (left is faster)")
        panel.set_ylabel("PSNR in dB (up is closer)")
        panel.margins(0.12)
        panel.set_xlim(left=0)
        figure.legend(loc="outside lower center", ncols=min(3, len(names) + 1), fontsize=9)
        return to_svg(figure)


def plot_grid(swept: Swept) -> str:
    """HTML: the unmerged image, then a row of images per method. Rows wrap where the page is narrow."""
    times = ", ".join(f"{shot.seconds:.2f} s" for shot in swept.unmerged)
    first = _figure(swept.unmerged[0].image, "nothing merged", times)
    rows = [f'<div class="tm-row"><h4>unmerged</h4><div class="tm-cells">{first}</div></div>']
    for method in dict.fromkeys(cell.method for cell in swept.cells):
        cells = "".join(_cell(cell) for cell in swept.cells if cell.method == method)
        rows.append(f'<div class="tm-row"><h4>{html.escape(method)}</h4><div class="tm-cells">{cells}</div></div>')
    return f'<div class="tm-grid">{"".join(rows)}</div>'


def _cell(cell: Cell) -> str:
    about = title(cell.method, cell.ratio)
    if cell.shot is None or cell.fidelity is None:
        return f'<figure class="tm-none"><p>{html.escape(cell.reason)}</p><figcaption>{about}</figcaption></figure>'
    psnr = "identical" if cell.fidelity.psnr is None else f"{cell.fidelity.psnr:.1f} dB"
    return _figure(cell.shot.image, about, f"{1 / cell.share:.2f}x, {psnr}", f"{cell.shot.seconds:.2f} s")


def _figure(image: Image.Image, title: str, *remarks: str) -> str:
    lines = "".join(f"<br>{html.escape(remark)}" for remark in remarks)
    return (
        f'<figure><img src="{data_url(image, THUMBNAIL)[0]}" alt="{html.escape(title)}">'
        f"<figcaption><b>{html.escape(title)}</b>{lines}</figcaption></figure>"
    )
