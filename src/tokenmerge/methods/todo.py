"""ToDo: Token Downsampling (Smith, Saxena & Saha, 2024, arXiv:2402.13573)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokenmerge.config.base import Keys, MergeConfig
from tokenmerge.config.checks import store_tuple
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators, SelectedKeys
from tokenmerge.config.ratio import Ratio, is_number
from tokenmerge.errors import ConfigError
from tokenmerge.ops.pooling import nearest_pooling, pooled_grid


@dataclass(frozen=True, kw_only=True)
class ToDo(MergeConfig):
    """Self-attention reads keys and values from a coarser grid; every query stays. Nothing is matched or copied back.

    Args:
        ratio: float or list of float, default 0.75. The fraction of keys and values left out on the model's finest
            level. 0.75 is the paper's factor of 2 (every second row and column). Queries and MLP keep their cost, so it
            saves less than merging at the same ratio and stays closer to the unmerged image. Try 0.75 first.
        coarser_ratios: tuple of float, default (). The same for levels 2, 4, ... times coarser, which are left alone
            without one. Very large images have keys to spare on two levels: try `ToDo.by_factor(4, 2)` at 2048 pixels.
        proportional, skip_blocks, min_tokens: as in `MergeConfig`.
    """

    ratio: Ratio = 0.75
    parts: tuple[str, ...] = ("self",)
    keys: Keys = "sampled"
    coarser_ratios: tuple[float, ...] = ()

    scopes: ClassVar[tuple[str, ...]] = ("site",)
    allowed_parts: ClassVar[tuple[str, ...]] = ("self",)
    allowed_keys: ClassVar[tuple[str, ...]] = ("sampled",)
    merges_queries: ClassVar[bool] = False

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

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
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
    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        assert isinstance(layout, PooledLayout)
        pooling = nearest_pooling(layout.grid, layout.coarse, tokens.device)
        samples = tokens.shape[0], -1
        return Operators(None, SelectedKeys(pooling.kept.expand(samples), pooling.mass.expand(samples), pooling.place))


@dataclass(frozen=True, eq=False)
class PooledLayout(Layout):
    """A layout that knows the grid of its keys."""

    coarse: tuple[int, ...] = ()
