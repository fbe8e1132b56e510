"""How much of a toy video tile means keep, flat and deep in time: the table in docs/quality.md."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.config.interfaces import BlockContext
from tokenmerge.methods.tile_mean import TileMean
from tokenmerge.runtime.pipelines import load_pipeline

FRAMES = 21  # latent ones: 81 of a video
SPEEDS = (0, 0.125, 0.25, 0.5, 1, 2)  # tokens a latent frame
TILES = (1, 4, 4), (4, 2, 2), (2, 4, 2), (1, 2, 2), (4, 1, 1)


def latent() -> Tensor:
    """(C, 32, 32): an image of the embedded model."""
    pipe = load_pipeline("emoji-sd", "cpu", "float32").pipe
    generator = torch.Generator().manual_seed(1)
    options = {"num_inference_steps": 8, "height": 256, "width": 256, "output_type": "latent"}
    made: Tensor = pipe("red apple", generator=generator, **options).images[0]
    return made


def panned(image: Tensor, speed: float) -> Tensor:
    """(1, frames * rows * columns, C): a window of the image, enlarged, that moves to the side."""
    channels, rows, columns = image.shape
    large = functional.interpolate(image[None], size=(2 * rows, 2 * columns), mode="bicubic")[0]
    window = slice(rows // 2, rows // 2 + rows), slice(columns // 2, columns // 2 + columns)
    frames = [large.roll(round(speed * frame), dims=2)[:, *window] for frame in range(FRAMES)]
    return torch.stack(frames).permute(0, 2, 3, 1).reshape(1, -1, channels)


def decibels(tile: tuple[int, ...], video: Tensor, grid: tuple[int, ...]) -> float:
    config = TileMean(tile=tile, correction=None)
    operator = config.plan(video, config.layout(grid), BlockContext("block", 0, 1, False, False), None).queries
    assert operator is not None
    error = float((operator.unmerge(operator.merge(video)) - video).square().mean())
    return 10 * math.log10(float(video.var()) / (error + 1e-9))


if __name__ == "__main__":
    image = latent()
    for speed in SPEEDS:
        video = panned(image, speed)
        grid = FRAMES, *image.shape[1:]
        shown = (f"{' x '.join(map(str, tile))}: {decibels(tile, video, grid):.1f} dB" for tile in TILES)
        print(speed, *shown, sep="  ")
