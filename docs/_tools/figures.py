"""The figures of docs/how-it-works.md: `.venv/bin/python docs/_tools/figures.py` writes them into docs/images.

The face is one image of the embedded emoji-sd, 512 px. The other two figures show the rule, not a measurement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import numpy as np
from matplotlib import pyplot
from matplotlib.patches import Rectangle
from PIL import Image

IMAGES = Path(__file__).parents[1] / "images"
SIDE, TILE = 32, 4  # tokens along a side of the shown grid, and of a tile
BLUE, ORANGE, GREY, GREEN = "#3f51b5", "#ef6c00", "#b0b7c3", "#2e7d32"
EVERY, STEPS = 6, 20


def tokens_of(image: Image.Image, side: int = SIDE) -> np.ndarray:
    """(side, side, 3): the mean colour of each token."""
    return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BOX), dtype=float) / 255


def tile_means(tokens: np.ndarray) -> np.ndarray:
    count = len(tokens) // TILE
    return tokens.reshape(count, TILE, count, TILE, 3).mean(axis=(1, 3))


def upsampled(means: np.ndarray, side: int = SIDE) -> np.ndarray:
    image = Image.fromarray((means * 255).round().astype(np.uint8))
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR), dtype=float) / 255


def show(panel: Any, tokens: np.ndarray, title: str) -> None:
    panel.imshow(tokens.clip(0, 1), interpolation="nearest")
    panel.set_title(title, fontsize=11)
    panel.set_xticks([])
    panel.set_yticks([])


def tile_figure(face: Image.Image) -> Any:
    tokens = tokens_of(face)
    figure, panels = pyplot.subplots(1, 3, figsize=(9.6, 3.6), width_ratios=(2, 1.2, 1.2))
    show(panels[0], tokens, f"the image as {SIDE} x {SIDE} tokens, tiles of {TILE} x {TILE}")
    for line in np.arange(-0.5, SIDE, TILE):
        panels[0].axhline(line, color="white", linewidth=0.8)
        panels[0].axvline(line, color="white", linewidth=0.8)
    row, column = 8, 8
    panels[0].add_patch(Rectangle((column - 0.5, row - 0.5), TILE, TILE, fill=False, edgecolor=ORANGE, linewidth=2.5))
    tile = tokens[row : row + TILE, column : column + TILE]
    show(panels[1], tile, "one tile: 16 tokens")
    for line in np.arange(-0.5, TILE, 1):
        panels[1].axhline(line, color="white", linewidth=1.5)
        panels[1].axvline(line, color="white", linewidth=1.5)
    show(panels[2], tile.mean(axis=(0, 1), keepdims=True), "merged: 1 token")
    for panel in panels[1:]:
        for spine in panel.spines.values():
            spine.set(edgecolor=ORANGE, linewidth=2.5)
    return figure


def merging_figure(face: Image.Image) -> Any:
    tokens = tokens_of(face)
    # The error was stored at an earlier step, when the image was not yet the same.
    noise = np.random.default_rng(0).normal(0, 0.03, tokens.shape)
    earlier = (tokens + noise).clip(0, 1)
    error = earlier - upsampled(tile_means(earlier))
    means = tile_means(tokens)
    figure, panels = pyplot.subplots(1, 4, figsize=(12, 3.4))
    show(panels[0], tokens, "all tokens")
    show(panels[1], means, "tile means: 1 in 16")
    show(panels[2], upsampled(means), "spread back")
    show(panels[3], upsampled(means) + error, "with the stored error")
    return figure


def steps_figure() -> Any:
    figure, panel = pyplot.subplots(figsize=(10, 2.5))
    full = list(range(0, STEPS, EVERY))
    for step in range(STEPS):
        is_full = step in full
        panel.add_patch(
            Rectangle((step, 0), 0.86, 1.0 if is_full else 0.45, facecolor=BLUE if is_full else GREY, edgecolor="none")
        )
        panel.text(step + 0.43, -0.22, str(step + 1), ha="center", va="top", fontsize=9)
        if is_full:
            end = min(step + EVERY - 0.6, STEPS - 0.2)
            if end > step + 1.2:
                arrow = {"arrowstyle": "->", "color": ORANGE, "linewidth": 2}
                panel.annotate("", xy=(end, 0.72), xytext=(step + 0.9, 0.72), arrowprops=arrow)
    panel.text(0.43, 1.12, "full: all tokens, then merged", color=BLUE, fontsize=10, ha="left")
    panel.text(7.6, 1.12, "the stored merging error is added back", color=ORANGE, fontsize=10, ha="left")
    panel.text(STEPS - 0.14, 1.12, "merged", color="#66707f", fontsize=10, ha="right")
    panel.set(xlim=(-0.2, STEPS + 0.1), ylim=(-0.7, 1.5))
    panel.set_axis_off()
    panel.text(STEPS / 2, -0.66, "denoising step", ha="center", fontsize=10)
    return figure


def skipping_figure() -> Any:
    figure, panel = pyplot.subplots(figsize=(10, 3.4))
    steps = np.linspace(0, 9, 200)

    def curve(step: Any) -> Any:
        return 1.6 * np.exp(-((step - 7.5) ** 2) / 14)

    computed, skipped = [0, 1, 2, 4, 6, 8], [3, 5, 7]
    panel.plot(steps, curve(steps), color=GREY, linewidth=1.5, label="what the model would return")
    panel.plot(computed, curve(np.array(computed)), "o", color=BLUE, markersize=9, label="computed")
    for number, step in enumerate(skipped):
        last, before = [value for value in computed if value < step][-1:-3:-1]
        slope = (curve(last) - curve(before)) / (last - before)
        forecast = curve(last) + slope * (step - last)
        panel.plot([last, step], [curve(last), forecast], "--", color=ORANGE, linewidth=1.5)
        label = "forecast, at a skipped step" if number == 0 else None
        panel.plot(step, forecast, "o", markerfacecolor="white", markeredgecolor=ORANGE, markersize=9, label=label)
        panel.plot([step, step], [curve(step), forecast], color=GREEN, linewidth=3,
                   label="error, made good at the next computed step" if number == 0 else None)  # fmt: skip
    panel.set_xlabel("denoising step")
    panel.set_ylabel("one value of the output")
    panel.set_xticks(range(10))
    panel.set_yticks([])
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.legend(fontsize=9, frameon=False, loc="upper left")
    return figure


def main() -> None:
    face = Image.open(IMAGES / "face.png")
    matplotlib.rcParams.update({"svg.hashsalt": "tokenmerge", "font.family": "sans-serif"})
    figures = {
        "how-tile": tile_figure(face),
        "how-merging": merging_figure(face),
        "how-steps": steps_figure(),
        "how-skipping": skipping_figure(),
    }
    for name, figure in figures.items():
        figure.tight_layout()
        figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
