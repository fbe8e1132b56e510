"""One token for each tile of a grid: its mean, and two ways back from the means to all tokens.

A grid is of rows and columns, or of frames of those; frames are taken for pictures of their own, which PyTorch averages
and interpolates far faster than volumes, and in half precision too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def mean_of_tiles(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, N, C) -> (B, M, C). tiles: how many along each axis of the grid, which they divide.

    >>> mean_of_tiles(torch.arange(8.0).view(1, 8, 1), (2, 4), (1, 2)).flatten().tolist()
    [2.5, 4.5]
    """
    *_, height, width = grid
    depth = _frames_of_a_tile(grid, tiles)
    frames = tokens.reshape(-1, depth, height, width, tokens.shape[-1])
    pictures = frames[:, 0] if depth == 1 else frames.mean(dim=1)
    means = functional.avg_pool2d(pictures.movedim(-1, 1), (height // tiles[-2], width // tiles[-1]))
    return _tokens_of(means, tokens)


def copied_over_tiles(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, M, C) -> (B, N, C): to every token what its tile has.

    >>> copied_over_tiles(torch.tensor([[[2.5], [4.5]]]), (2, 4), (1, 2)).flatten().tolist()
    [2.5, 2.5, 4.5, 4.5, 2.5, 2.5, 4.5, 4.5]
    """
    return _resized(tokens, grid, tiles, "nearest")


def spread_between_tiles(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
    """(B, M, C) -> (B, N, C): linearly from the middle of a tile to that of the next, without edges between them.

    Frames of one tile are alike.

    >>> spread_between_tiles(torch.tensor([[[0.0], [4.0]]]), (1, 4), (1, 2)).flatten().tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    return _resized(tokens, grid, tiles, "bilinear")


def middles_of_tiles(grid: tuple[int, ...], tiles: tuple[int, ...], device: torch.device) -> Tensor:
    """(M,): the token in the middle of each tile; of four in the middle the last.

    >>> middles_of_tiles((4, 4), (1, 2), torch.device("cpu")).tolist()
    [9, 11]
    """
    places = torch.zeros(1, dtype=torch.long, device=device)
    for length, count in zip(grid, tiles, strict=True):
        side = length // count
        middles = torch.arange(count, device=device) * side + side // 2
        places = (places.unsqueeze(1) * length + middles).flatten()
    return places


def _frames_of_a_tile(grid: tuple[int, ...], tiles: tuple[int, ...]) -> int:
    return math.prod(grid[:-2]) // math.prod(tiles[:-2])


def _resized(tokens: Tensor, grid: tuple[int, ...], tiles: tuple[int, ...], mode: str) -> Tensor:
    *_, height, width = grid
    depth = _frames_of_a_tile(grid, tiles)
    # With channels side by side PyTorch does it up to a hundred times as fast.
    pictures = tokens.contiguous().view(-1, *tiles[-2:], tokens.shape[-1]).movedim(-1, 1)
    resized = functional.interpolate(pictures, size=(height, width), mode=mode)
    return _tokens_of(resized if depth == 1 else resized.repeat_interleave(depth, dim=0), tokens)


def _tokens_of(pictures: Tensor, like: Tensor) -> Tensor:
    """(B * frames, C, H, W) -> (B, N, C), in the type that tokens came in, which autocast may have widened."""
    return pictures.movedim(1, -1).reshape(like.shape[0], -1, like.shape[-1]).to(like.dtype)
