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
    means,  # (B, M, C), any strides
    errors,  # (B, ERRORS, N, C), any strides: those recorded at the last full steps
    weights,  # (B, ERRORS), contiguous
    output,  # (B, N, C), any strides
    channels,
    height,
    width,
    tiles_h,
    tiles_w,
    frames,
    means_b,
    means_n,
    means_c,
    errors_b,
    errors_k,
    errors_n,
    errors_c,
    output_b,
    output_n,
    output_c,
    DEPTH: tl.constexpr,
    ERRORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0)  # of a token, among those of all samples
    column = place % width
    row = (place // width) % height
    frame = (place // (width * height)) % frames
    sample = (place // (width * height * frames)).to(tl.int64)
    token = (place % (width * height * frames)).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    top, bottom, down = _between(row, tiles_h, height)
    left, right, across = _between(column, tiles_w, width)
    rows = (frame // DEPTH).to(tl.int64) * tiles_h
    upper, lower = (rows + top) * tiles_w, (rows + bottom) * tiles_w
    first = means + sample * means_b + channel * means_c
    one = tl.load(first + (upper + left) * means_n, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(first + (upper + right) * means_n, mask=inside, other=0.0).to(tl.float32)
    three = tl.load(first + (lower + left) * means_n, mask=inside, other=0.0).to(tl.float32)
    four = tl.load(first + (lower + right) * means_n, mask=inside, other=0.0).to(tl.float32)
    above = one + (two - one) * across
    below = three + (four - three) * across
    total = above + (below - above) * down
    place_of_error = errors + sample * errors_b + token * errors_n + channel * errors_c
    for index in tl.static_range(ERRORS):
        error = tl.load(place_of_error + index * errors_k, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + sample * ERRORS + index).to(tl.float32) * error
    place_of_output = output + sample * output_b + token * output_n + channel * output_c
    tl.store(place_of_output, total.to(output.dtype.element_ty), mask=inside)


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
    means: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...], errors: Tensor, weights: Tensor
) -> Tensor:
    """(B, M, C) -> (B, N, C): bilinear between tiles, plus recorded errors (B, K, N, C) by weights (B, K, 1, 1)."""
    batch, _, channels = means.shape
    output = torch.empty(batch, channels, math.prod(grid), dtype=means.dtype, device=means.device).transpose(1, 2)
    if errors.stride(-1) == 1:  # in the same order as they are
        output = torch.empty(batch, math.prod(grid), channels, dtype=means.dtype, device=means.device)
    unmerge_kernel[(batch * math.prod(grid), triton.cdiv(channels, BLOCK))](
        means,
        errors,
        weights.contiguous(),
        output,
        channels,
        grid[-2],
        grid[-1],
        tiles[-2],
        tiles[-1],
        math.prod(grid[:-2]),
        *means.stride(),
        *errors.stride(),
        *output.stride(),
        DEPTH=math.prod(grid[:-2]) // math.prod(tiles[:-2]),
        ERRORS=errors.shape[1],
        BLOCK=BLOCK,
    )
    return output
