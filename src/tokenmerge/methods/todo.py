"""ToDo: Token Downsampling (Smith, Saxena & Saha, 2024, arXiv:2402.13573)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import store_tuple
from tokenmerge.config.ratio import Ratio, is_number
from tokenmerge.errors import ConfigError
from tokenmerge.methods.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.ops.pooling import Pooling, nearest_pooling, pooled_grid


@dataclass(frozen=True, eq=False)
class PooledOperator:
    """Reads the tokens of a coarser grid; unmerging spreads them out again."""

    pooling: Pooling
    mass: Tensor  # (B, M)
    destinations: Tensor  # (B, M)

    def merge(self, tokens: Tensor) -> Tensor:
        return tokens.index_select(1, self.pooling.kept)

    def unmerge(self, tokens: Tensor) -> Tensor:
        return tokens.index_select(1, self.pooling.place)


@dataclass(frozen=True, kw_only=True)
class ToDo(MergeConfig):
    """Self-attention reads keys and values from a coarser grid; every query stays. Nothing is matched or copied back.

    ratio: fraction of keys and values left out on the model's finest level. 0.75, the default, is the paper's factor
        of 2 (every second row and column); other ratios take rows and columns at even distances. Queries and MLP keep
        their cost, so it saves less than merging at the same ratio and stays closer to the picture.
    coarser_ratios: the same for levels 2, 4, ... times coarser, which are left alone where none is given. Very large
        images have keys to spare on two levels: try `ToDo.by_factor(4, 2)` at 2048 pixels.
    """

    ratio: Ratio = 0.75
    parts: tuple[str, ...] = ("self",)
    coarser_ratios: tuple[float, ...] = ()

    scopes: ClassVar[tuple[str, ...]] = ("site",)
    allowed_parts: ClassVar[tuple[str, ...]] = ("self",)

    @classmethod
    def by_factor(cls, finest: int = 2, *coarser: int) -> ToDo:
        """By how far each side of the keys' grid shrinks: on the finest level, then on coarser ones.

        >>> ToDo.by_factor(4, 2).ratio
        0.9375
        """
        for factor in (finest, *coarser):
            if not isinstance(factor, int) or isinstance(factor, bool) or factor < 1:
                raise ConfigError(f"factor is {factor!r}: it takes a whole number of at least 1, such as 2.")
        return cls(ratio=1 - 1 / finest**2, coarser_ratios=tuple(1 - 1 / factor**2 for factor in coarser))

    def __post_init__(self) -> None:
        super().__post_init__()
        store_tuple(self, "coarser_ratios")
        for ratio in self.coarser_ratios:
            if not is_number(ratio) or not 0 <= ratio < 1:
                raise ConfigError(
                    f"coarser_ratios has {ratio!r}: it takes numbers from 0 (that level is left alone) up to, not "
                    f"including, 1."
                )

    @property
    def keys_apart(self) -> bool:
        return True

    @property
    def picks_keys(self) -> bool:
        return True

    @property
    def merges_only_keys(self) -> bool:
        return True

    def layout(self, grid: tuple[int, ...]) -> Layout:
        return self.layout_at(grid, downsample=1)

    def layout_at(self, grid: tuple[int, ...], downsample: int) -> Layout:
        ratios = (self.number("ratio"), *self.coarser_ratios)
        level = downsample.bit_length() - 1
        if level >= len(ratios) or ratios[level] == 0:
            raise CannotMerge(f"{downsample} times coarser than the model's finest level, with no ratio for it")
        coarse = pooled_grid(grid, math.sqrt(1 - ratios[level]))
        if coarse == grid:
            raise CannotMerge(
                f"ratio {ratios[level]} keeps every row and column of {' x '.join(map(str, grid))} tokens"
            )
        tokens = math.prod(grid)
        return PooledLayout(grid, tokens, kept=tokens, kept_keys=math.prod(coarse), coarse=coarse)

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, place: BlockContext, previous: Operators | None) -> Operators:
        assert isinstance(layout, PooledLayout)
        pooling = nearest_pooling(layout.grid, layout.coarse, tokens.device)
        samples = tokens.shape[0], -1
        operator = PooledOperator(pooling, pooling.mass.expand(samples), pooling.kept.expand(samples))
        return Operators(queries=None, keys=operator)


@dataclass(frozen=True, eq=False)
class PooledLayout(Layout):
    """A layout that knows the grid of its keys."""

    coarse: tuple[int, ...] = ()
