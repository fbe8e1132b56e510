"""Tile mean and its way back with the correction, each in one kernel (plain forms: ops/tiles.py, engine/correction.py).

Unmerging in plain PyTorch reads and writes all tokens four times: upsampling, a copy into token order, and two weighted
sums. Here each token is written once.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # channels at a time


@triton.jit
def mean_kernel(  # type: ignore[no-untyped-def]
    tokens,  # (B, frames * height * width, C), any strides
    means,  # (B, M, C), contiguous
    channels,
    height,
    width,
    tiles_h,
    tiles_w,
    frames_out,
    stride_b,
    stride_n,
    stride_c,
    DEPTH: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0)  # of a mean, among those of all samples
    column = place % tiles_w
    row = (place // tiles_w) % tiles_h
    frame = (place // (tiles_w * tiles_h)) % frames_out
    sample = (place // (tiles_w * tiles_h * frames_out)).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    first = tokens + sample * stride_b + channel * stride_c
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for depth in tl.static_range(DEPTH):
        for down in tl.static_range(TILE_H):
            for right in tl.static_range(TILE_W):
                line = (frame * DEPTH + depth) * height + row * TILE_H + down
                token = line * width + column * TILE_W + right
                total += tl.load(first + token * stride_n, mask=inside, other=0.0).to(tl.float32)
    mean = total / (DEPTH * TILE_H * TILE_W)
    tl.store(means + place.to(tl.int64) * channels + channel, mean.to(means.dtype.element_ty), mask=inside)


@triton.jit
def _between(position, count, length):  # type: ignore[no-untyped-def]
    """The two tiles that a token lies between along one axis, and how far it is from the first to the second."""
    source = (position.to(tl.float32) + 0.5) * (count / length) - 0.5
    source = tl.maximum(source, 0.0)
    low = tl.minimum(source.to(tl.int32), count - 1)
    high = tl.minimum(low + 1, count - 1)
    return low, high, source - low.to(tl.float32)


@triton.jit
def unmerge_kernel(  # type: ignore[no-untyped-def]
    means,  # (B, M, C), contiguous
    newer,  # (B, N, C), contiguous: the errors recorded at the last full step
    older,  # and at the one before it
    weights,  # (B, ERRORS) float32
    output,  # (B, N, C), contiguous
    channels,
    height,
    width,
    tiles_h,
    tiles_w,
    frames,
    DEPTH: tl.constexpr,
    ERRORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0)  # of a token, among those of all samples
    column = place % width
    row = (place // width) % height
    frame = (place // (width * height)) % frames
    sample = place // (width * height * frames)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    top, bottom, down = _between(row, tiles_h, height)
    left, right, across = _between(column, tiles_w, width)
    picture = (sample * (frames // DEPTH) + frame // DEPTH).to(tl.int64) * tiles_h
    upper, lower = (picture + top) * tiles_w, (picture + bottom) * tiles_w
    one = tl.load(means + (upper + left) * channels + channel, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(means + (upper + right) * channels + channel, mask=inside, other=0.0).to(tl.float32)
    three = tl.load(means + (lower + left) * channels + channel, mask=inside, other=0.0).to(tl.float32)
    four = tl.load(means + (lower + right) * channels + channel, mask=inside, other=0.0).to(tl.float32)
    above = one + (two - one) * across
    below = three + (four - three) * across
    total = above + (below - above) * down
    at = place.to(tl.int64) * channels + channel
    if ERRORS > 0:
        error = tl.load(newer + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + sample * ERRORS) * error
    if ERRORS > 1:
        error = tl.load(older + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + sample * ERRORS + 1) * error
    tl.store(output + at, total.to(output.dtype.element_ty), mask=inside)


def mean_of_tiles(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, N, C) -> (B, M, C), as `ops.tiles.mean_of_tiles`."""
    batch, _, channels = tokens.shape
    depth = math.prod(grid[:-2]) // math.prod(tiles[:-2])
    count = math.prod(tiles)
    means = torch.empty(batch, count, channels, dtype=tokens.dtype, device=tokens.device)
    mean_kernel[(batch * count, triton.cdiv(channels, BLOCK))](
        tokens,
        means,
        channels,
        grid[-2],
        grid[-1],
        tiles[-2],
        tiles[-1],
        math.prod(tiles[:-2]),
        *tokens.stride(),
        DEPTH=depth,
        TILE_H=grid[-2] // tiles[-2],
        TILE_W=grid[-1] // tiles[-1],
        BLOCK=BLOCK,
    )
    return means


def unmerge_corrected(
    means: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...], errors: tuple[Tensor, ...], weights: Tensor | None
) -> Tensor:
    """(B, M, C) -> (B, N, C): bilinear between tiles, plus up to two recorded errors.

    errors: (B, N, C) each, contiguous; weights: (B, len(errors)) float32, None without errors.
    """
    batch, _, channels = means.shape
    means = means.contiguous()
    output = torch.empty(batch, math.prod(grid), channels, dtype=means.dtype, device=means.device)
    newer, older = (*errors, output, output)[:2]  # what is not there is not read
    unmerge_kernel[(output.shape[0] * output.shape[1], triton.cdiv(channels, BLOCK))](
        means,
        newer,
        older,
        output if weights is None else weights,
        output,
        channels,
        grid[-2],
        grid[-1],
        tiles[-2],
        tiles[-1],
        math.prod(grid[:-2]),
        DEPTH=math.prod(grid[:-2]) // math.prod(tiles[:-2]),
        ERRORS=len(errors),
        BLOCK=BLOCK,
    )
    return output
