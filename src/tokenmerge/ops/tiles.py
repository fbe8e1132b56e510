"""One token for each tile of a grid: its mean, and the way back from the means to all tokens.

A grid has rows and columns, or frames of those. Frames are treated as separate images, which PyTorch averages and
interpolates far faster than volumes, and in half precision too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.ops.indexing import crossed
from tokenmerge.ops.kernels import takes_kernels


def mean_of_tiles(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, N, C) -> (B, M, C). tiles: how many along each axis. If they do not divide it, neighbours share tokens.

    >>> mean_of_tiles(torch.arange(8.0).view(1, 8, 1), (2, 4), (1, 2)).flatten().tolist()
    [2.5, 4.5]
    """
    if takes_kernels(tokens):
        from tokenmerge.ops.kernels import tiles as fused

        return fused.mean_of_tiles(tokens, grid, tiles)
    *_, height, width = grid
    frames = _mean_of_frames(tokens, grid, tiles).reshape(-1, height, width, tokens.shape[-1]).movedim(-1, 1)
    if height % tiles[-2] or width % tiles[-1]:
        return _tokens_of(functional.adaptive_avg_pool2d(frames, (tiles[-2], tiles[-1])), tokens)
    return _tokens_of(functional.avg_pool2d(frames, (height // tiles[-2], width // tiles[-1])), tokens)


def spread_between_tiles(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, M, C) -> (B, N, C): linearly from the middle of a tile to that of the next, without edges between them.

    Frames of one tile are alike.

    >>> spread_between_tiles(torch.tensor([[[0.0], [4.0]]]), (1, 4), (1, 2)).flatten().tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    *_, height, width = grid
    if tokens.device.type == "cpu":
        tokens = tokens.contiguous()  # with channels side by side a CPU does it up to a hundred times as fast
    frames = tokens.reshape(-1, *tiles[-2:], tokens.shape[-1]).movedim(-1, 1)
    spread = _tokens_of(functional.interpolate(frames, size=(height, width), mode="bilinear"), tokens)
    length, count = math.prod(grid[:-2]), math.prod(tiles[:-2])
    if length == count:
        return spread
    owner = torch.arange(length, device=tokens.device) * count // length
    frames = spread.view(tokens.shape[0], count, -1, tokens.shape[-1])
    return frames.index_select(1, owner).flatten(1, 2)


def spread_with_errors(
    tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...], errors: Tensor, weights: Tensor
) -> Tensor:
    """(B, M, C) -> (B, N, C): spread between tiles, plus the weighted sum of recorded errors.

    errors: (B, K, N, C); weights: (B, K, 1, 1).
    """
    if takes_kernels(tokens, errors):
        from tokenmerge.ops.kernels import tiles as fused

        return fused.unmerge_corrected(tokens, grid, tiles, errors, weights)
    return add_weighted(spread_between_tiles(tokens, grid, tiles), errors, weights)


def add_weighted(tokens: Tensor, errors: Tensor, weights: Tensor) -> Tensor:
    """(B, N, C) -> (B, N, C): plus the weighted sum of errors (B, K, N, C), by weights (B, K, 1, 1), in one operation.

    >>> errors = torch.tensor([1.0, 10.0]).view(1, 2, 1, 1).expand(1, 2, 3, 1)
    >>> add_weighted(torch.zeros(1, 3, 1), errors, torch.tensor([2.0, 3.0]).view(1, 2, 1, 1)).flatten().tolist()
    [32.0, 32.0, 32.0]
    """
    if tokens.dtype != errors.dtype or _autocasts(tokens.device):
        # Autocast would round the tokens of a product.
        for error, weight in zip(errors.unbind(dim=1), weights.unbind(dim=1), strict=True):
            tokens = torch.addcmul(tokens, weight, error)
        return tokens
    samples, count, length, channels = errors.shape
    by_kind = weights.view(samples, 1, count)
    if errors.stride(-1) == 1 or channels == 1:
        summed = torch.baddbmm(tokens.reshape(samples, 1, -1), by_kind, errors.reshape(samples, count, -1))
        return summed.view(samples, length, channels)
    # Channels first, as a UNet has them.
    first, errors = tokens.transpose(1, 2), errors.transpose(2, 3)
    summed = torch.baddbmm(first.reshape(samples, 1, -1), by_kind, errors.reshape(samples, count, -1))
    return summed.view(samples, channels, length).transpose(1, 2)


def _autocasts(device: torch.device) -> bool:
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def middles_of_tiles(grid: tuple[int, ...], tiles: tuple[int, ...], device: torch.device) -> Tensor:
    """(M,): the token in the middle of each tile; of four in the middle the last.

    >>> middles_of_tiles((4, 4), (1, 2), torch.device("cpu")).tolist()
    [9, 11]
    """
    pairs = zip(grid, tiles, strict=True)
    return crossed(grid, ((2 * torch.arange(count, device=device) + 1) * side // (2 * count) for side, count in pairs))


def owners_of_tokens(grid: tuple[int, ...], tiles: tuple[int, ...], device: torch.device) -> Tensor:
    """(N,): the tile that each token lies in.

    >>> owners_of_tokens((2, 4), (1, 2), torch.device("cpu")).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    """
    pairs = zip(grid, tiles, strict=True)
    return crossed(tiles, (torch.arange(length, device=device) * count // length for length, count in pairs))


def _mean_of_frames(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, F * P, C) -> (B, f * P, C), with P tokens in a frame."""
    length, count = math.prod(grid[:-2]), math.prod(tiles[:-2])
    if length == count:
        return tokens
    frames = tokens.reshape(tokens.shape[0], length, -1)
    if length % count == 0:
        means = frames.view(tokens.shape[0], count, length // count, -1).mean(dim=2)
    else:
        means = functional.adaptive_avg_pool1d(frames.transpose(1, 2), count).transpose(1, 2)
    return means.reshape(tokens.shape[0], -1, tokens.shape[-1])


def _tokens_of(frames: Tensor, like: Tensor) -> Tensor:
    """(B * frames, C, H, W) -> (B, N, C), in the type that tokens came in, which autocast may have widened."""
    return frames.movedim(1, -1).reshape(like.shape[0], -1, like.shape[-1]).to(like.dtype)
