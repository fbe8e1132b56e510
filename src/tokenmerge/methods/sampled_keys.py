"""SampledKeys: self-attention reads one key of each tile, another one at each step; all queries stay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokenmerge.config.base import Keys, MergeConfig
from tokenmerge.config.checks import check_whole, store_tile
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators, SelectedKeys
from tokenmerge.errors import ConfigError
from tokenmerge.methods.tiled import by, tile_on
from tokenmerge.ops.hashing import scrambled
from tokenmerge.ops.outliers import left_in_tiles, outliers_of
from tokenmerge.ops.regions import regions_of


@dataclass(frozen=True, kw_only=True)
class SampledKeys(MergeConfig):
    """Self-attention reads one key and value of each tile, sampled at random at each step. All queries stay.

    No visible effect in Stable Diffusion UNets, whose coarser levels see the whole image anyway. In transformers of one
    level it changes more. It saves a share of self-attention alone: most on large images and videos.

    Args:
        tile: int or tuple of int, default (2, 2). Height and width of a tile in tokens, one number for a square. Larger
            is faster and changes more. Try 2 first, then 4.
        outliers: int, default 0. The keys farthest from the mean of their tile that are always read. In some models
            every token attends to a few that are unlike all others. More is a little slower and safer. Try 8 first.
        max_downsample: int, default 1. Levels up to this many times coarser, per side, than the model's finest are
            sampled. 1 is the finest level alone; 2 and 4 are a little faster and change more.
        proportional: bool, default True. Weights each key by the number of tokens it stands for. Only matters for text
            and image tokens in one attention: there it stays closer to the unmerged image.
        step_speedup: float, default 1.0. Computes one in this many denoising steps, on average, and forecasts what the
            model returns at the others. 2 halves the time and stays close to the image from about 10 steps on. Try 1.5
            to 2.5 first.
        skip_blocks, min_tokens: as in `MergeConfig`.
    """

    parts: tuple[str, ...] = ("self",)
    keys: Keys = "sampled"
    proportional: bool = True
    step_speedup: float = 1.0
    tile: int | tuple[int, ...] = (2, 2)
    outliers: int = 0
    max_downsample: int = 1

    scopes: ClassVar[tuple[str, ...]] = ("site",)
    allowed_parts: ClassVar[tuple[str, ...]] = ("self",)
    allowed_keys: ClassVar[tuple[str, ...]] = ("sampled",)
    merges_queries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        store_tile(self, "tile")
        if math.prod(self._sides) == 1:
            raise ConfigError(f"tile is {self.tile!r}, which leaves no key out: use a tile of at least 2 tokens.")
        check_whole("outliers", self.outliers, least=0)
        check_whole("max_downsample", self.max_downsample, least=1)
        super().__post_init__()

    @property
    def _sides(self) -> tuple[int, ...]:
        assert isinstance(self.tile, tuple)
        return self.tile

    @property
    def ratio(self) -> float:
        """The fraction of keys that is not read."""
        return 1 - 1 / math.prod(self._sides)

    @property
    def resamples(self) -> bool:
        return True

    @property
    def refresh_every(self) -> tuple[int, int]:
        return 1, 1

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        self._refuse_coarser(downsample, self.max_downsample)
        regions = regions_of(grid, tile_on(grid, self._sides))
        kept = regions.count + self.outliers
        if kept >= regions.tokens:
            raise CannotMerge(f"tile {by(self._sides)} and {self.outliers} outliers keep all {by(grid)} keys")
        equal = not regions.padded and not self.outliers
        return Layout(grid, regions.tokens, regions.tokens, kept, regions, equal_mass=equal)

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        if previous is not None:
            return previous
        assert layout.regions is not None
        regions = layout.regions
        available = regions.valid
        if available is None:
            available = torch.ones(regions.count, regions.size, dtype=torch.bool, device=tokens.device)
        seed = 0 if context.seed is None else context.seed
        owner = regions.inverse // regions.size
        grid = regions.scatter(tokens) if context.in_region_order else tokens
        outliers = owner.new_empty(tokens.shape[0], 0)  # (B, K)
        if self.outliers:
            outliers = outliers_of(grid, owner, self.outliers, regions.count, context.one_for_batch)
        sampled = self._sampled(available, regions.inverse[outliers], seed)  # (B, R) indices
        left = left_in_tiles(outliers, owner, regions.count)
        mass = torch.cat([left, left.new_ones(outliers.shape)], dim=1)
        destinations = torch.cat([regions.order[sampled], outliers], dim=1)
        return Operators(None, SelectedKeys(destinations, mass, owner))

    def _sampled(self, available: Tensor, outliers: Tensor, seed: int | Tensor) -> Tensor:
        """(B, R): a place in each region (R, n), which is none of the outliers' (B, K) unless there is no other."""
        indices = torch.arange(available.numel(), device=available.device)
        scores = scrambled(indices, seed).masked_fill(~available.flatten(), -1).expand(outliers.shape[0], -1)
        scores = scores.scatter(1, outliers, -1).view(-1, *available.shape)
        offsets = torch.arange(available.shape[0], device=available.device) * available.shape[1]
        return scores.argmax(dim=-1) + offsets
