"""Regions: a grid of tokens cut into equally many local pieces (ToMA, section 4.3.1).

A region is a tile, a stripe of rows, or the whole grid. Tokens of one region are brought side by side,
so that everything later is one batched matrix product over regions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Regions:
    """How the N tokens of a grid fall into R regions of n places each.

    Where the tile does not divide the grid, tiles differ by a row or a column; the smaller ones are filled up
    with repeats of their last token, which `valid` marks as not being there.
    """

    grid: tuple[int, ...]
    order: Tensor  # (R * n,) token index of each place; a permutation of 0..N-1 where nothing is padded
    inverse: Tensor  # (N,) the place of each token
    valid: Tensor | None  # (R, n) False at padding; None where there is none
    count: int  # R
    size: int  # n
    smallest: int  # real tokens in the smallest region
    natural: bool  # the order is 0..N-1 already, so nothing needs to move

    @property
    def tokens(self) -> int:
        """N, the number of tokens of the grid."""
        return math.prod(self.grid)

    @property
    def padded(self) -> bool:
        return self.valid is not None

    def kept(self, ratio: float) -> int:
        """Tokens kept per region when `ratio` of them are merged away: the same for all, so shapes are static.

        >>> regions_of((8, 8), (4, 4)).kept(0.5)
        8
        """
        return max(1, min(self.smallest, round(self.tokens / self.count * (1 - ratio))))

    def gather(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, R * n, C): tokens of a region side by side."""
        return tokens if self.natural else tokens.index_select(1, self.order)

    def scatter(self, tokens: Tensor) -> Tensor:
        """(B, R * n, C) -> (B, N, C): the inverse of `gather`; padding is dropped."""
        return tokens if self.natural else tokens.index_select(1, self.inverse)

    def to(self, device: torch.device) -> Regions:
        """The same regions with their index tensors on `device`."""
        return _on_device(self, device)


def regions_of(grid: tuple[int, ...], tile: tuple[int, ...]) -> Regions:
    """Cut a grid of any number of axes into tiles of (about) the given size.

    Each axis is cut into ceil(length / tile) pieces that differ by at most one token.

    >>> r = regions_of((4, 4), (2, 2))
    >>> r.order.view(r.count, r.size)[0].tolist()
    [0, 1, 4, 5]
    """
    return _regions_of(tuple(grid), tuple(tile))


def stripe_tile(grid: tuple[int, ...], area: int) -> tuple[int, ...]:
    """The tile that is whole rows of the grid, as many of them as come nearest to `area` tokens.

    >>> stripe_tile((64, 64), 64), stripe_tile((16, 16), 64)
    ((1, 64), (4, 16))
    """
    *leading, height, width = grid
    rows = min(height, max(1, round(area / width)))
    return (*[1] * len(leading), rows, width)


@lru_cache(maxsize=256)
def _regions_of(grid: tuple[int, ...], tile: tuple[int, ...]) -> Regions:
    cuts = [_even_cuts(length, math.ceil(length / side)) for length, side in zip(grid, tile, strict=True)]
    index = torch.arange(math.prod(grid)).view(grid)
    pieces = [index]
    for axis, sizes in enumerate(cuts):
        pieces = [part for piece in pieces for part in piece.split_with_sizes(sizes, dim=axis)]
    flat = [piece.reshape(-1) for piece in pieces]
    smallest, largest = min(map(len, flat)), max(map(len, flat))
    # Padding repeats a token of the same region: harmless wherever it is read, and never read where it matters.
    rows = [torch.cat([piece, piece[-1:].expand(largest - len(piece))]) for piece in flat]
    order = torch.stack(rows)
    valid = torch.stack([torch.arange(largest) < len(piece) for piece in flat])
    inverse = torch.empty(math.prod(grid), dtype=torch.long)
    inverse[order[valid]] = valid.flatten().nonzero().squeeze(1)
    return Regions(
        grid=grid,
        order=order.flatten(),
        inverse=inverse,
        valid=None if smallest == largest else valid,
        count=len(flat),
        size=largest,
        smallest=smallest,
        natural=bool(torch.equal(order.flatten(), torch.arange(math.prod(grid)))),
    )


@lru_cache(maxsize=256)
def _on_device(regions: Regions, device: torch.device) -> Regions:
    if regions.order.device == device:
        return regions
    return Regions(
        grid=regions.grid,
        order=regions.order.to(device),
        inverse=regions.inverse.to(device),
        valid=None if regions.valid is None else regions.valid.to(device),
        count=regions.count,
        size=regions.size,
        smallest=regions.smallest,
        natural=regions.natural,
    )


def _even_cuts(length: int, pieces: int) -> list[int]:
    short, longer = divmod(length, pieces)
    return [short + 1] * longer + [short] * (pieces - longer)
