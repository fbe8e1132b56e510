"""What the tab "Look inside" shows, as images and SVG: pure functions of what was recorded."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tokenmerge.eval.figures.clusters import in_colours_of, short_name
from tokenmerge.eval.figures.overlap import INTERVAL
from tokenmerge.eval.figures.plotting import COLOURS, new_figure, styled, to_svg
from tokenmerge.web.recording import MergeView
from tokenmerge.web.stages import STAGES

SIDE = 768  # pixels of an image's longer side, at least
# One colour for a stage wherever it appears; what merging itself costs is warm, what the model does is cool.
STAGE_COLOURS = dict(
    zip(STAGES, ("#D55E00", "#E69F00", "#CC79A7", "#8A6FBF", "#0072B2", "#009E73", "#9aa0a6"), strict=True)
)


def plot_merges(image: Image.Image, view: MergeView) -> Image.Image:
    """Each group of merged tokens in its mean colour, with a line around it, and a dot at its destination.

    Tokens that are alone, merged with none, show the image as it is.
    """
    owners = view.owners()
    cell = _cell(view.grid)
    canvas = _enlarged(image, view.grid, cell)
    groups = Image.fromarray(in_colours_of(image, owners, view.grid)).resize(canvas.size, Image.Resampling.NEAREST)
    sizes = np.bincount(owners, minlength=view.kept)
    shared = (sizes[owners] > 1).reshape(view.grid)
    mask = Image.fromarray((shared * 255).astype(np.uint8)).resize(canvas.size, Image.Resampling.NEAREST)
    canvas.paste(groups, (0, 0), mask)
    draw = ImageDraw.Draw(canvas, "RGBA")
    _add_borders(draw, owners.reshape(view.grid), shared, cell)
    radius = max(1.5, cell / 5)
    for kept, token in enumerate(view.destinations()):
        if sizes[kept] > 1:
            _dot(draw, int(token), view.grid, cell, radius)
    return canvas


def plot_weights(image: Image.Image, view: MergeView, token: int) -> tuple[Image.Image, str]:
    """The merge-weight map of a token, and a sentence about it.

    The map shows what the destination that the token reads most from is made of: the warmer, the more a token counts.
    """
    reads = view.reads(token)
    strongest = int(reads.argmax())
    gathered = view.gathered(strongest)
    cell = _cell(view.grid)
    canvas = _enlarged(image, view.grid, cell)
    grey = canvas.convert("L").convert("RGB")
    canvas = Image.blend(grey, Image.new("RGB", grey.size, "white"), 0.45)
    heat = (gathered / max(float(gathered.max()), 1e-12)).reshape(view.grid)
    colour = Image.fromarray(_warm(heat)).resize(canvas.size, Image.Resampling.NEAREST)
    alpha = Image.fromarray((np.sqrt(heat) * 235).astype(np.uint8)).resize(canvas.size, Image.Resampling.NEAREST)
    canvas.paste(colour, (0, 0), alpha)
    draw = ImageDraw.Draw(canvas)
    destination = int(view.destinations()[strongest])
    _frame(draw, token, view.grid, cell, "#00A3FF")
    _dot(draw, destination, view.grid, cell, max(2.0, cell / 4))
    return canvas, _about_token(view, token, reads, gathered, destination)


def telling_token(view: MergeView) -> int:
    """A token to begin with: the destination into which most are merged."""
    return int(view.destinations()[np.bincount(view.owners(), minlength=view.kept).argmax()])


def token_under(grid: tuple[int, int], x: float, y: float) -> tuple[int, int]:
    """Row and column of the token at a pixel of such an image.

    >>> token_under((32, 32), 30, 767)
    (31, 1)
    """
    cell = _cell(grid)
    return min(int(y // cell), grid[0] - 1), min(int(x // cell), grid[1] - 1)


def plot_clusters(image: Image.Image, clusters: NDArray[np.int64], grid: tuple[int, int]) -> Image.Image:
    """k-means clusters of the tokens that enter a block, each in its mean colour in the image."""
    painted = Image.fromarray(in_colours_of(image, clusters, grid))
    cell = _cell(grid)
    return painted.resize((grid[1] * cell, grid[0] * cell), Image.Resampling.NEAREST)


def plot_overlap(values: Mapping[str, Sequence[float]], block: str) -> str:
    """The overlap of destinations over steps, SVG: the chosen block in colour, all others in grey behind it."""
    with styled():
        figure = new_figure(5.2, 3.2)
        panel = figure.subplots()
        for name, line in values.items():
            mine = name == block
            panel.plot(
                range(1, len(line) + 1),
                [100 * value for value in line],
                color=COLOURS[0] if mine else "#c4c7cc",
                linewidth=2.2 if mine else 0.9,
                marker="o" if mine else None,
                markersize=4,
                zorder=3 if mine else 2,
                label=short_name(name) if mine else None,
            )
        panel.set_xlabel("denoising step")
        panel.set_ylabel(f"% shared with the first of {INTERVAL} steps")
        panel.set_ylim(0, 104)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if block in values:
            panel.legend(loc="lower left", fontsize=9)
        return to_svg(figure)


def stage_bars(stages: Mapping[str, Mapping[str, float]]) -> str:
    """Where time went, as HTML: a bar a run, as long as the run took, with its stages in colours."""
    longest = max(sum(run.values()) for run in stages.values())
    rows = []
    for name, run in stages.items():
        total = sum(run.values())
        pieces = "".join(
            f'<span style="width:{100 * seconds / longest:.3f}%;background:{STAGE_COLOURS[stage]}" '
            f'title="{stage}: {seconds:.3f} s"></span>'
            for stage, seconds in run.items()
            if seconds > 0
        )
        label = f"{html.escape(name)}: {total:.2f} s"
        rows.append(
            f'<div class="tm-bar-label">{label}</div><div class="tm-bar" role="img" aria-label="{label}">{pieces}</div>'
        )
    return f'<div class="tm-bars">{"".join(rows)}{_stage_table(stages)}</div>'


def _stage_table(stages: Mapping[str, Mapping[str, float]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in stages)
    rows = "".join(
        f'<tr><td><i style="background:{STAGE_COLOURS[stage]}"></i>{stage}</td>'
        + "".join(f"<td>{_seconds(run.get(stage, 0.0))}</td>" for run in stages.values())
        + "</tr>"
        for stage in STAGES
    )
    return f'<table class="tm-stages"><tr><th>stage</th>{head}</tr>{rows}</table>'


def _seconds(value: float) -> str:
    return "–" if value == 0 else f"{value:.3f} s"


def _about_token(
    view: MergeView, token: int, reads: NDArray[np.float32], gathered: NDArray[np.float32], destination: int
) -> str:
    row, column = divmod(token, view.grid[1])
    to_row, to_column = divmod(destination, view.grid[1])
    share = float(reads.max())
    counted = int((gathered > 0.01 * gathered.max()).sum())
    where = f"The token at row {row}, column {column} reads {share:.0%} of its value from "
    where += "itself, a destination" if destination == token else f"the destination at row {to_row}, column {to_column}"
    if counted == 1:
        return f"{where}, into which no other token is merged."
    return f"{where}, into which {counted} tokens are merged. The warmer a token, the more it counts there."


def _cell(grid: tuple[int, int]) -> int:
    """Pixels of a token's side, so that the image is large enough to point at."""
    return max(4, -(-SIDE // max(grid)))


def _enlarged(image: Image.Image, grid: tuple[int, int], cell: int) -> Image.Image:
    return image.convert("RGB").resize((grid[1] * cell, grid[0] * cell), Image.Resampling.LANCZOS)


def _add_borders(draw: ImageDraw.ImageDraw, owners: NDArray[np.int64], shared: NDArray[np.bool_], cell: int) -> None:
    """A line around every group: between neighbours of different groups, unless each of them is alone."""
    colour = (0, 0, 0, 120)
    across = (owners[:, 1:] != owners[:, :-1]) & (shared[:, 1:] | shared[:, :-1])
    below = (owners[1:] != owners[:-1]) & (shared[1:] | shared[:-1])
    for row, column in zip(*np.nonzero(across), strict=True):
        x = (int(column) + 1) * cell
        draw.line([(x, int(row) * cell), (x, (int(row) + 1) * cell)], colour, 1)
    for row, column in zip(*np.nonzero(below), strict=True):
        y = (int(row) + 1) * cell
        draw.line([(int(column) * cell, y), ((int(column) + 1) * cell, y)], colour, 1)


def _dot(draw: ImageDraw.ImageDraw, token: int, grid: tuple[int, int], cell: int, radius: float) -> None:
    row, column = divmod(token, grid[1])
    x, y = (column + 0.5) * cell, (row + 0.5) * cell
    draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill="white", outline="#20242a")


def _frame(draw: ImageDraw.ImageDraw, token: int, grid: tuple[int, int], cell: int, colour: str) -> None:
    row, column = divmod(token, grid[1])
    box = [column * cell - 2, row * cell - 2, (column + 1) * cell + 1, (row + 1) * cell + 1]
    draw.rectangle(box, outline=colour, width=3)


def _warm(heat: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(H, W) from 0 to 1 -> (H, W, 3): from yellow to deep red, readable over grey by people who see few colours."""
    stops = np.array([[255, 214, 92], [242, 120, 40], [150, 10, 30]], dtype=np.float64)
    place = np.clip(heat, 0, 1) * (len(stops) - 1)
    low = np.floor(place).astype(int).clip(0, len(stops) - 2)
    blend = (place - low)[..., None]
    colours: NDArray[np.float64] = stops[low] * (1 - blend) + stops[low + 1] * blend
    return colours.round().astype(np.uint8)
