"""A method that goes through every hook and changes nothing, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.interfaces import BlockContext, Layout, Operators
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.ops.regions import regions_of


@dataclass(frozen=True, kw_only=True)
class Identity(MergeConfig):
    """Every token is its own destination, in tile order or in the grid's own."""

    ratio: float = 0.5
    tiled: bool = True
    min_tokens: int = 0
    proportional: bool = True

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        tile = (*[1] * (len(grid) - 2), 2, 2)
        regions = regions_of(grid, tile)
        fits = self.tiled and not regions.padded
        return Layout(grid, regions.tokens, regions.tokens, regions.tokens, regions if fits else None)

    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        batch, count, _ = tokens.shape
        every: Any = torch.eye(count).expand(batch, -1, -1)
        regions = None if context.in_region_order else layout.regions
        places = torch.arange(count) if regions is None else regions.order
        operator = LinearOperator(
            down=every,
            up=every,
            regions=regions,
            mass=torch.ones(batch, count),
            destinations=places.expand(batch, -1),
        )
        return Operators(operator, operator)
