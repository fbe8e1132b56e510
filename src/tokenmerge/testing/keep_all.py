"""A method that merges nothing, with which a model that is described rightly gives the output that it always gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.ops.regions import Regions, regions_of


@dataclass(frozen=True, eq=False)
class _Every:
    """Every token is kept, in the order of regions if there are any."""

    regions: Regions | None
    mass: Tensor  # (B, N)
    destinations: Tensor  # (B, N)

    def merge(self, tokens: Tensor) -> Tensor:
        return tokens if self.regions is None else self.regions.gather(tokens)

    def unmerge(self, tokens: Tensor) -> Tensor:
        return tokens if self.regions is None else self.regions.scatter(tokens)


@dataclass(frozen=True, kw_only=True)
class Nothing(MergeConfig):
    """Goes through everything that merging does, and keeps every token: a model's output must stay the same.

    Args:
        tiled: bool, default True. Whether tokens are put into the order of 2 x 2 tiles.
    """

    ratio: float = 0.5
    tiled: bool = True
    min_tokens: int = 0
    proportional: bool = True

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        if math.prod(grid) < 4:
            raise CannotMerge(f"{grid} has fewer than four tokens")
        regions = regions_of(grid, (*[1] * (len(grid) - 2), *(min(2, side) for side in grid[-2:])))
        in_tiles = self.tiled and not regions.padded
        return Layout(grid, regions.tokens, regions.tokens, regions.tokens, regions if in_tiles else None)

    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        batch, count, _ = tokens.shape
        regions = None if context.in_region_order or layout.regions is None else layout.regions.to(tokens.device)
        places = torch.arange(count, device=tokens.device) if regions is None else regions.order
        operator = _Every(regions, torch.ones(batch, count, device=tokens.device), places.expand(batch, -1))
        return Operators(operator, operator)
