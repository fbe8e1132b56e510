"""TileMean: the mean of each tile, spread back by bilinear upsampling; what the presets use with full steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_whole, store_tile
from tokenmerge.config.correction import FullSteps
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators, operators_for
from tokenmerge.errors import ConfigError
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.methods.tiled import by, refuse_white_mask, tile_on
from tokenmerge.ops.indexing import tokens_at
from tokenmerge.ops.outliers import left_in_tiles, outliers_of
from tokenmerge.ops.regions import Regions, regions_of
from tokenmerge.ops.tiles import (
    add_weighted,
    mean_of_tiles,
    middles_of_tiles,
    owners_of_tokens,
    spread_between_tiles,
    spread_with_errors,
)

WHOLE_IMAGE = 120  # more computed steps than images have


@dataclass(frozen=True, eq=False)
class TileMeanOperator:
    """Averages each tile, but for its outliers, which follow the means as they are."""

    grid: tuple[int, ...]
    tiles: tuple[int, ...]  # how many along each axis
    mass: Tensor  # (B, M)
    destinations: Tensor  # (B, M): the token in the middle of each tile, and the outliers
    outliers: Tensor | None = None  # (B, K)
    owner: Tensor | None = None  # (N,) the tile of each token

    def merge(self, tokens: Tensor) -> Tensor:
        if self.outliers is None or self.owner is None:
            return mean_of_tiles(tokens, self.grid, self.tiles)
        kept = tokens_at(tokens, self.outliers)
        count = math.prod(self.tiles)
        # In float32: an outlier is taken out of a sum that it makes up most of.
        total = torch.zeros(tokens.shape[0], count, tokens.shape[2], device=tokens.device)
        total = total.index_add(1, self.owner, tokens.float())
        tile_of = self.owner[self.outliers].unsqueeze(-1).expand_as(kept)
        total = total.scatter_add(1, tile_of, -kept.float())
        left = self.mass[:, :count].unsqueeze(-1).clamp(min=1)
        return torch.cat([(total / left).to(tokens.dtype), kept], dim=1)

    def unmerge(self, tokens: Tensor) -> Tensor:
        if self.outliers is None:
            return spread_between_tiles(tokens, self.grid, self.tiles)
        means, kept = torch.split(tokens, [math.prod(self.tiles), self.outliers.shape[1]], dim=1)
        spread = spread_between_tiles(means, self.grid, self.tiles)
        return spread.scatter(1, self.outliers.unsqueeze(-1).expand_as(kept), kept)

    def unmerge_with(self, tokens: Tensor, errors: Tensor, weights: Tensor) -> Tensor:
        """Unmerge and add recorded errors: in one pass on a GPU."""
        if self.outliers is None:
            return spread_with_errors(tokens, self.grid, self.tiles, errors, weights)
        return add_weighted(self.unmerge(tokens), errors, weights)


@dataclass(frozen=True, kw_only=True)
class TileMean(MergeConfig):
    """Each tile of tokens becomes its mean, and the result is upsampled bilinearly. Full steps restore the detail.

    The other options are those of `MergeConfig`.

    Args:
        tile: int or tuple of int, default (4, 4). Height and width of a tile in tokens, one number for a square (with
            frames in front for video). 4 merges 15 of 16 tokens away, 2 three of four. Larger is faster and blurs more.
            Try 2 and 4 first.
        outliers: int, default 0. The tokens farthest from the mean of their tile that are kept as they are. In some
            models every token attends to a few that are unlike all others, and a mean would erase those. More is a
            little slower and safer. Try 8 and 32 first.
        correction: FullSteps or None, default `FullSteps(every=6, within=0.35)`. Without it the image is blurred.
        proportional: bool, default True. Weights each key by the number of tokens it stands for. Only matters for text
            and image tokens in one attention: there it stays closer to the unmerged image, at no measurable cost.
        step_speedup: float, default 1.0. Computes one in this many denoising steps, on average, and forecasts what the
            model returns at the others. 2 halves the time and stays close to the image from about 10 steps on. Try 1.5
            to 2.5 first.
    """

    tile: int | tuple[int, ...] = (4, 4)
    outliers: int = 0
    correction: FullSteps | None = field(default_factory=FullSteps)
    proportional: bool = True
    step_speedup: float = 1.0

    takes_mask: ClassVar[bool] = True

    def __post_init__(self) -> None:
        store_tile(self, "tile")
        if math.prod(self._sides) == 1:
            raise ConfigError(
                f"tile is {self.tile!r}, which merges nothing: use a tile of at least 2 tokens, such as 2."
            )
        check_whole("outliers", self.outliers, least=0)
        super().__post_init__()

    @property
    def refresh_every(self) -> tuple[int, int]:
        """Outliers are chosen once an image: merging errors are those of one choice."""
        return (WHOLE_IMAGE, WHOLE_IMAGE) if self.outliers else super().refresh_every

    @property
    def _sides(self) -> tuple[int, ...]:
        assert isinstance(self.tile, tuple)
        return self.tile

    @property
    def ratio(self) -> float:
        return 1 - 1 / math.prod(self._sides)

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        refuse_white_mask(grid, protected)
        if protected and self.outliers:
            raise ConfigError(f"outliers is {self.outliers} and keep protects other tokens: leave out one of the two.")
        tokens = math.prod(grid)
        regions = regions_of(grid, tile_on(grid, self._sides), protected) if protected else None
        means = math.prod(self._tiles(grid)) if regions is None else regions.count
        kept = means + (self.outliers if regions is None else regions.protected)
        if kept >= tokens:
            raise CannotMerge(f"tile {by(self._sides)} keeps all {by(grid)} tokens; choose a larger tile")
        kept_keys = tokens if self.keys == "all" else kept
        equal = regions is None and not self.outliers
        return Layout(grid, tokens, kept, kept_keys, regions, equal_mass=equal, fixed=True)

    def _tiles(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """How many tiles there are along each axis. If they do not divide it, they differ by up to a token."""
        return tuple(math.ceil(length / side) for length, side in zip(grid, tile_on(grid, self._sides), strict=True))

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        if previous is not None:
            return previous
        if layout.regions is not None:
            return operators_for(self.keys, _around_protected(tokens, layout.regions))
        samples, grid, tiles = tokens.shape[0], layout.grid, self._tiles(layout.grid)
        middles = middles_of_tiles(grid, tiles, tokens.device)
        count = math.prod(tiles)
        if not self.outliers:
            mass = torch.full((), layout.tokens / count, device=tokens.device).expand(samples, count)
            return operators_for(self.keys, TileMeanOperator(grid, tiles, mass, middles.expand(samples, -1)))
        owner = owners_of_tokens(grid, tiles, tokens.device)
        outliers = outliers_of(tokens, owner, self.outliers, count, context.one_for_batch)
        left = left_in_tiles(outliers, owner, count)
        mass = torch.cat([left, left.new_ones(outliers.shape)], dim=1)
        destinations = torch.cat([middles.expand(samples, -1), outliers], dim=1)
        return operators_for(self.keys, TileMeanOperator(grid, tiles, mass, destinations, outliers, owner))


def _around_protected(tokens: Tensor, regions: Regions) -> LinearOperator:
    """The mean of each region, with protected tokens behind them as they are. Regions then need not be rectangles."""
    samples, size, protected = tokens.shape[0], regions.size, regions.protected
    groups = samples * regions.count
    inside = regions.count * size
    middles = torch.arange(regions.count, device=tokens.device) * size + size // 2
    behind = torch.arange(inside, inside + protected, device=tokens.device)
    mass = torch.cat([torch.full((regions.count,), float(size)), torch.ones(protected)]).to(tokens.device)
    return LinearOperator(
        down=tokens.new_full((), 1 / size).expand(groups, 1, size),
        up=tokens.new_ones(()).expand(groups, size, 1),
        regions=regions,
        protected=protected,
        mass=mass.expand(samples, -1),
        destinations=regions.order[torch.cat([middles, behind])].expand(samples, -1),
    )
