"""ToMeSD: Token Merging for Fast Stable Diffusion (Bolya & Hoffman, 2023, arXiv:2303.17604)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig, Share
from tokenmerge.config.checks import check_flag, check_whole
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators, operators_for
from tokenmerge.config.ratio import Ratio, numbers_of
from tokenmerge.errors import ConfigError
from tokenmerge.ops.bipartite import (
    Matching,
    count_destinations,
    match_tokens,
    merge_by_mean,
    split_tokens,
    unmerge_by_copy,
)
from tokenmerge.ops.similarity import unit_tokens


@dataclass(frozen=True, eq=False)
class MatchedOperator:
    """Merges tokens into the ones they were matched with, and copies back."""

    matching: Matching
    combine: Callable[[Tensor, Matching], Tensor]  # (B, N, C) -> (B, M, C)

    @property
    def mass(self) -> Tensor:
        return self.matching.mass

    @property
    def destinations(self) -> Tensor:
        return self.matching.kept

    def merge(self, tokens: Tensor) -> Tensor:
        return self.combine(tokens, self.matching)

    def unmerge(self, tokens: Tensor) -> Tensor:
        return unmerge_by_copy(tokens, self.matching)


@dataclass(frozen=True, kw_only=True)
class ToMeSD(MergeConfig):
    """One destination in each small cell; the tokens most like a destination are averaged into it, and copied back.

    With use_rand=False it computes what the package `tomesd` computes. Its defaults are the package's, except
    `max_downsample`, which also merges in SDXL, and randomness that can be repeated.

    Args:
        ratio: float or list of float, default 0.5. The fraction of tokens merged away, at most 1 - per_cell / (sx *
            sy): 0.75 with the default cells. More is faster and blurs more. Try 0.25 to 0.5 first.
        parts: tuple of str, default ("self",). With "cross" it is a little faster. "mlp" costs the most detail.
        sx, sy: int, default 2. Width and height of a cell in tokens. Larger cells allow higher ratios and merge over
            longer distances. Try 2 x 2 first, then 1 x 2, which came closer at low ratios in a replication.
        per_cell: int, default 1. Destinations in each cell. More keep detail where a cell holds an edge, and lower the
            highest ratio.
        use_rand: bool, default True. Destinations at random positions in their cells, which avoids a visible grid at
            high ratios. False takes the same position in every cell. The speed is the same.
        seed: int, default 0. Which random positions. Each block has others; all samples of a batch have the same.
        max_downsample: int, default 1. Levels up to this many times coarser, per side, than the model's finest are
            merged. 1 merges the finest alone, where most of the speed is in SD 1.5. SDXL gains more with 2. The package
            counts from the latent instead, where SDXL has no attention, so its default does nothing there.
        select_every: int, default 1. Matches tokens again every this many steps. More is faster and less accurate.
        scope, keys, correction, proportional, skip_blocks, min_tokens: as in `MergeConfig`.
    """

    ratio: Ratio = 0.5
    parts: tuple[str, ...] = ("self",)
    select_every: int = 1
    sx: int = 2
    sy: int = 2
    per_cell: int = 1
    use_rand: bool = True
    seed: int = 0
    max_downsample: int = 1

    share: ClassVar[Share] = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("sx", "sy", "per_cell", "max_downsample", "select_every"):
            check_whole(field, getattr(self, field), least=1)
        check_whole("seed", self.seed, least=0)
        if self.seed >= 2**32:
            raise ConfigError(
                f"seed is {self.seed}: it takes a whole number below 2**32, because larger ones would repeat smaller "
                f"ones."
            )
        check_flag("use_rand", self.use_rand)
        area = self.sx * self.sy
        if self.per_cell >= area:
            raise ConfigError(
                f"per_cell is {self.per_cell}: a cell of {self.sx} x {self.sy} tokens can keep at most {area - 1}, or "
                f"nothing is left to merge. Use a smaller per_cell, or larger cells (sx, sy)."
            )
        most = 1 - self.per_cell / area
        if max(numbers_of(self.ratio)) > most + 1e-9:
            raise ConfigError(
                f"ratio is {self.ratio!r}: with {self.per_cell} kept in every cell of {self.sx} x {self.sy} tokens, it "
                f"takes at most {most:.4g}. Lower ratio, or use larger cells (sx, sy)."
            )

    @property
    def refresh_every(self) -> tuple[int, int]:
        return self.select_every, self.select_every

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        self._refuse_coarser(downsample, self.max_downsample)
        tokens, cell = math.prod(grid), self._cell(grid)
        if any(side > length for side, length in zip(cell, grid, strict=True)):
            raise ConfigError(
                f"a cell of {self.sx} x {self.sy} is larger than the {' x '.join(map(str, grid))} grid of tokens: use "
                f"smaller cells (sx, sy), or min_tokens={tokens + 1} to leave that level alone."
            )
        merged = int(tokens * self.number("ratio"))
        if merged == 0:
            raise CannotMerge(f"ratio {self.ratio} of {tokens} tokens is not one token")
        sources = tokens - count_destinations(grid, cell, self.per_cell)
        if merged > sources:
            raise ConfigError(
                f"ratio is {self.ratio!r}: only {sources} of {tokens} tokens are not kept by their cells."
            )
        kept = tokens - merged
        return Layout(grid, tokens, kept, kept_keys=tokens if self.keys == "all" else kept)

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        if previous is not None:
            return previous  # a matching has no weights that could be computed without it
        return operators_for(self.keys, self._operator(self._match(tokens, layout, context), context))

    def _match(self, tokens: Tensor, layout: Layout, context: BlockContext) -> Matching:
        seed = self.seed * 65_537 + context.index if self.use_rand else None
        cell = self._cell(layout.grid)
        sources, destinations = split_tokens(layout.grid, cell, self.per_cell, seed, tokens.device)
        merged = layout.tokens - layout.kept
        return match_tokens(unit_tokens(tokens), sources, destinations, merged, context.one_for_batch)

    def _operator(self, matching: Matching, context: BlockContext) -> MatchedOperator:
        return MatchedOperator(matching, merge_by_mean)

    def _cell(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Cells lie within one frame of a video, and are one token high on one row of tokens."""
        return (*[1] * (len(grid) - 2), 1 if grid[-2] == 1 else self.sy, self.sx)
