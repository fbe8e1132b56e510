"""An operator for one token of each tile: ToMA's, where whole steps tell what that loses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmerge.ops.tiles import copied_over_tiles, mean_of_tiles, middles_of_tiles, spread_between_tiles


@dataclass(frozen=True, eq=False)
class PooledOperator:
    """Averages every tile. All tokens stay in the order of the grid, and none need be compared with another.

    What one token stands for is the same whichever of its tile is chosen; it sits in the middle, where the mean is.
    """

    grid: tuple[int, ...]
    tiles: tuple[int, ...]  # how many along each axis
    mass: Tensor  # (B, M)
    destinations: Tensor  # (B, M)

    def merge(self, tokens: Tensor) -> Tensor:
        return mean_of_tiles(tokens, self.grid, self.tiles)

    def unmerge(self, tokens: Tensor) -> Tensor:
        return copied_over_tiles(tokens, self.grid, self.tiles)

    def spread(self, tokens: Tensor) -> Tensor:
        """Unmerge without edges between tiles, for tokens whose detail is added afterwards."""
        return spread_between_tiles(tokens, self.grid, self.tiles)


def pooled_operator(
    grid: tuple[int, ...], tiles: tuple[int, ...], samples: int, device: torch.device
) -> PooledOperator:
    places = middles_of_tiles(grid, tiles, device)
    mass = torch.full((), math.prod(grid) / math.prod(tiles), device=device)
    return PooledOperator(grid, tiles, mass.expand(samples, len(places)), places.expand(samples, -1))
