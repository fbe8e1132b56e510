"""TileMean: the mean of each tile, spread back by bilinear upsampling; what the presets use with full steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_step_speedup, store_tile
from tokenmerge.config.correction import FullSteps
from tokenmerge.errors import ConfigError
from tokenmerge.methods.interfaces import BlockContext, CannotMerge, Layout, Operators, operators_for
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.methods.tiled import by, refuse_white_mask, tile_on
from tokenmerge.ops.regions import Regions, regions_of
from tokenmerge.ops.tiles import mean_of_tiles, middles_of_tiles, spread_between_tiles, spread_with_errors


@dataclass(frozen=True, eq=False)
class TileMeanOperator:
    """Averages each tile. All tokens stay in the order of the grid, and none is compared with another."""

    grid: tuple[int, ...]
    tiles: tuple[int, ...]  # how many along each axis
    mass: Tensor  # (B, M)
    destinations: Tensor  # (B, M): the token in the middle of each tile

    def merge(self, tokens: Tensor) -> Tensor:
        return mean_of_tiles(tokens, self.grid, self.tiles)

    def unmerge(self, tokens: Tensor) -> Tensor:
        return spread_between_tiles(tokens, self.grid, self.tiles)

    def unmerge_with(self, tokens: Tensor, errors: list[Tensor], weights: list[Tensor]) -> Tensor:
        """Unmerge and add recorded errors: in one pass on a GPU."""
        return spread_with_errors(tokens, self.grid, self.tiles, errors, weights)


@dataclass(frozen=True, kw_only=True)
class TileMean(MergeConfig):
    """Each tile of tokens becomes its mean, and the result is upsampled bilinearly. Full steps restore the detail.

    `TileMean()` is the preset "balanced": the best balance of speed and image on the embedded models (docs/quality.md).
    The other options are those of `MergeConfig`.

    Args:
        tile: int or tuple of int, default (4, 4). Height and width of a tile in tokens, one number for a square (with
            frames in front for video). 4 merges 15 of 16 tokens away, 2 three of four. Larger is faster and blurs more.
            Try 2 and 4 first.
        correction: FullSteps or None, default `FullSteps(every=6, within=0.35)`. Without it the image is blurred.
        proportional: bool, default True. Weights each key by the number of tokens it stands for. Only matters for text
            and image tokens in one attention: there it stays closer to the unmerged image, at no measurable cost.
        step_speedup: float, default 1.0. Computes one in this many denoising steps, on average, and forecasts what the
            model returns at the others. 2 halves the time and stays close to the image from about 10 steps on. Try 1.5
            to 2.5 first.
    """

    tile: int | tuple[int, ...] = (4, 4)
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
        super().__post_init__()
        check_step_speedup(self.step_speedup)

    @property
    def _sides(self) -> tuple[int, ...]:
        assert isinstance(self.tile, tuple)
        return self.tile

    @property
    def ratio(self) -> float:
        return 1 - 1 / math.prod(self._sides)

    def layout(self, grid: tuple[int, ...]) -> Layout:
        return self.layout_keeping(grid, 1, ())

    def layout_keeping(self, grid: tuple[int, ...], downsample: int, protected: tuple[int, ...]) -> Layout:
        refuse_white_mask(grid, protected)
        tokens = math.prod(grid)
        regions = regions_of(grid, tile_on(grid, self._sides), protected) if protected else None
        kept = math.prod(self._tiles(grid)) if regions is None else regions.count + regions.aside
        if kept == tokens:
            raise CannotMerge(f"tile {by(self._sides)} keeps all {by(grid)} tokens; choose a larger tile")
        kept_keys = tokens if self.keys == "all" else kept
        return Layout(grid, tokens, kept, kept_keys, regions, equal_mass=regions is None, fixed=True)

    def _tiles(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """How many tiles there are along each axis. If they do not divide it, they differ by up to a token."""
        return tuple(math.ceil(length / side) for length, side in zip(grid, tile_on(grid, self._sides), strict=True))

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, place: BlockContext, previous: Operators | None) -> Operators:
        if previous is not None:
            return previous
        if layout.regions is not None:
            return operators_for(self.keys, _around_protected(tokens, layout.regions))
        samples, grid, tiles = tokens.shape[0], layout.grid, self._tiles(layout.grid)
        middles = middles_of_tiles(grid, tiles, tokens.device)
        mass = torch.full((), layout.tokens / layout.kept, device=tokens.device).expand(samples, layout.kept)
        return operators_for(self.keys, TileMeanOperator(grid, tiles, mass, middles.expand(samples, -1)))


def _around_protected(tokens: Tensor, regions: Regions) -> LinearOperator:
    """The mean of each region, with protected tokens behind them as they are. Regions then need not be rectangles."""
    samples, size, protected = tokens.shape[0], regions.size, regions.aside
    groups = samples * regions.count
    inside = regions.count * size
    middles = torch.arange(regions.count, device=tokens.device) * size + size // 2
    behind = torch.arange(inside, inside + protected, device=tokens.device)
    mass = torch.cat([torch.full((regions.count,), float(size)), torch.ones(protected)]).to(tokens.device)
    return LinearOperator(
        down=tokens.new_full((), 1 / size).expand(groups, 1, size),
        up=tokens.new_ones(()).expand(groups, size, 1),
        regions=regions,
        aside=protected,
        mass=mass.expand(samples, -1),
        destinations=regions.order[torch.cat([middles, behind])].expand(samples, -1),
    )
