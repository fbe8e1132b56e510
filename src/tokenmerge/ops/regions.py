"""Regions: a grid of tokens cut into equally many local pieces (ToMA, section 4.3.1).

A region is a tile, a stripe of rows, or the whole grid. Tokens of one region are brought side by side,
so that everything later is one batched matrix product over regions.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tokenmerge.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Regions:
    """How the N tokens of a grid fall into R regions of n positions each.

    Where the tile does not divide the grid, tiles differ by a row or a column; the smaller ones are filled up
    with repeats of their last token, which `valid` marks as not being there. Tokens that are kept as they are belong
    to no region: their positions follow those of the regions.
    """

    grid: tuple[int, ...]
    order: Tensor  # (R * n + protected,) token index of each position; a permutation of 0..N-1 where nothing is padded
    inverse: Tensor  # (N,) the place of each token
    valid: Tensor | None  # (R, n) False at padding; None where there is none
    count: int  # R
    size: int  # n
    smallest: int  # real tokens in the smallest region
    is_identity: bool  # the order is 0..N-1 already, so nothing needs to move
    protected: int = 0  # tokens in no region

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
        inside = self.tokens - self.protected
        return max(1, min(self.smallest, round(inside / self.count * (1 - ratio))))

    def gather(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, R * n + protected, C): tokens of a region side by side."""
        return tokens if self.is_identity else tokens.index_select(1, self.order)

    def scatter(self, tokens: Tensor) -> Tensor:
        """(B, R * n + protected, C) -> (B, N, C): the inverse of `gather`; padding is dropped."""
        return tokens if self.is_identity else tokens.index_select(1, self.inverse)

    def to(self, device: torch.device) -> Regions:
        """The same regions with their index tensors on `device`."""
        return _on_device(self, device)


def regions_of(grid: tuple[int, ...], tile: tuple[int, ...], protected: tuple[int, ...] = ()) -> Regions:
    """Cut a grid of any number of axes into tiles of (about) the given size.

    Each axis is cut into ceil(length / tile) pieces that differ by at most one token. With `protected` tokens, the
    others are taken tile by tile and cut into pieces of a tile's size, so that regions stay local and alike in size;
    what is left over, less than a tile, is protected too.

    >>> r = regions_of((4, 4), (2, 2))
    >>> r.order.view(r.count, r.size)[0].tolist()
    [0, 1, 4, 5]
    """
    if min(grid, default=0) < 1:
        raise ConfigError(f"a grid of {' x '.join(map(str, grid))} holds no tokens: give one of at least 1 x 1.")
    return _regions_of(tuple(grid), tuple(tile), tuple(protected))


def stripe_tile(grid: tuple[int, ...], area: int) -> tuple[int, ...]:
    """The tile that is whole rows of the grid, as many of them as come nearest to `area` tokens.

    >>> stripe_tile((64, 64), 64), stripe_tile((16, 16), 64)
    ((1, 64), (4, 16))
    """
    *leading, height, width = grid
    rows = min(height, max(1, round(area / width)))
    return (*[1] * len(leading), rows, width)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # what is kept must serve training too
def _regions_of(grid: tuple[int, ...], tile: tuple[int, ...], protected: tuple[int, ...]) -> Regions:
    cuts = [_even_cuts(length, math.ceil(length / side)) for length, side in zip(grid, tile, strict=True)]
    index = torch.arange(math.prod(grid)).view(grid)
    pieces = [index]
    for axis, sizes in enumerate(cuts):
        pieces = [part for piece in pieces for part in piece.split_with_sizes(sizes, dim=axis)]
    flat = [piece.reshape(-1) for piece in pieces]
    if protected:
        inside = torch.cat(flat)
        inside = inside[~torch.isin(inside, torch.tensor(protected))]
        size = min(max(map(len, flat)), len(inside))
        whole = len(inside) // size * size
        flat = list(inside[:whole].split(size))  # type: ignore[no-untyped-call]
        protected = (*protected, *inside[whole:].tolist())
    smallest, largest = min(map(len, flat)), max(map(len, flat))
    # Padding repeats a token of the same region: harmless wherever it is read, and never read where it matters.
    rows = [torch.cat([piece, piece[-1:].expand(largest - len(piece))]) for piece in flat]
    places = torch.stack(rows)
    valid = torch.stack([torch.arange(largest) < len(piece) for piece in flat])
    inverse = torch.empty(math.prod(grid), dtype=torch.long)
    inverse[places[valid]] = valid.flatten().nonzero().squeeze(1)
    order = torch.cat([places.flatten(), torch.tensor(protected, dtype=torch.long)])
    inverse[list(protected)] = torch.arange(places.numel(), len(order))
    return Regions(
        grid=grid,
        order=order,
        inverse=inverse,
        valid=None if smallest == largest else valid,
        count=len(flat),
        size=largest,
        smallest=smallest,
        is_identity=bool(torch.equal(order, torch.arange(math.prod(grid)))),
        protected=len(protected),
    )


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # what is kept must serve training too
def _on_device(regions: Regions, device: torch.device) -> Regions:
    if regions.order.device == device:
        return regions
    return dataclasses.replace(
        regions,
        order=regions.order.to(device),
        inverse=regions.inverse.to(device),
        valid=None if regions.valid is None else regions.valid.to(device),
    )


def _even_cuts(length: int, pieces: int) -> list[int]:
    short, longer = divmod(length, pieces)
    return [short + 1] * longer + [short] * (pieces - longer)
