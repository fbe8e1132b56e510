"""ToMA: Token Merge with Attention (Zheng et al., ICML 2025, arXiv:2509.10918)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokenmerge.config import CannotMerge, Layout, MergeConfig, Operators, Place, _is_number
from tokenmerge.errors import ConfigError
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.ops.attention_merge import (
    assignment_weights,
    merge_matrix,
    represented,
    unmerge_by_pinv,
    unmerge_by_transpose,
)
from tokenmerge.ops.regions import Regions, regions_of, stripe_tile
from tokenmerge.ops.selection import SELECTORS, Selector
from tokenmerge.ops.similarity import cosine_similarity, unit_tokens

SIMILARITY_STEPS = 4096


@dataclass(frozen=True, kw_only=True)
class ToMA(MergeConfig):
    """Destinations by facility location, merge and unmerge by attention-like products, plans reused over steps.

    region: where destinations are selected. "tile" keeps most of the picture, "stripe" needs no reordering of tokens,
        "global" searches the whole grid and is slow to select in.
    tile: height and width of a tile in tokens (frames too, for video, in front). A stripe is rows of the grid with as
        many tokens. Small tiles are cheaper to select in and stay closer to the picture; the paper's is (8, 8).
    attend: where tokens are assigned to destinations: within their "region", or "global".
    selector: "facility_location", "random" or "grid" for comparison, or a function (see `tokenmerge.ops.selection`).
    temperature: softness of the assignment. Small recovers hard merging by nearest destination; above 0.05 images blur.
    unmerge: "transpose" copies back and is fast; "pinv" is the least-squares inverse, slower, and rarely better.
    kv_ratio: fraction merged away from keys and values of self-attention, where that should differ from `ratio`.
        With ratio=0 only keys and values are merged; with kv_ratio=0 only queries are.
    weights_every: steps for which merge weights are kept; must divide `select_every`.
    """

    ratio: float = 0.5
    region: Literal["tile", "stripe", "global"] = "tile"
    tile: tuple[int, ...] = (4, 4)
    attend: Literal["region", "global"] = "region"
    selector: str | Selector = "facility_location"
    temperature: float = 0.01
    unmerge: Literal["transpose", "pinv"] = "transpose"
    kv_ratio: float | None = None
    proportional: bool = True
    weights_every: int = 5

    @classmethod
    def paper(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA: destinations per stripe, assignment over the whole grid."""
        return cls(ratio=ratio, region="stripe", tile=(8, 8), attend="global", proportional=False)

    @classmethod
    def paper_stripe(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA-stripe: destinations and assignment per stripe."""
        return cls(ratio=ratio, region="stripe", tile=(8, 8), proportional=False)

    @classmethod
    def paper_tile(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA-tile: destinations and assignment per 8 x 8 tile; its best images."""
        return cls(ratio=ratio, region="tile", tile=(8, 8), proportional=False)

    @classmethod
    def paper_block(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA*: merged once per block instead of around each of its parts."""
        return dataclasses.replace(cls.paper(ratio), scope="block")

    @classmethod
    def stack(cls, ratio: float = 0.5) -> ToMA:
        """Merged once per run of consecutive blocks: the least overhead of all."""
        return cls(ratio=ratio, scope="stack")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("region", self.region, ("tile", "stripe", "global"))
        self._check_choice("attend", self.attend, ("region", "global"))
        self._check_choice("unmerge", self.unmerge, ("transpose", "pinv"))
        if not callable(self.selector):
            self._check_choice("selector", self.selector, tuple(SELECTORS))
        self._store_tuple("tile")
        if len(self.tile) not in (2, 3):
            raise ConfigError(f"tile is {self.tile!r}: it takes (height, width), or (frames, height, width) for video.")
        for side in self.tile:
            self._check_whole("tile", side, least=1)
        if not _is_number(self.temperature) or self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature!r}: it takes a number above 0, such as 0.01.")
        self._check_whole("weights_every", self.weights_every, least=1)
        if self.select_every % self.weights_every:
            raise ConfigError(
                f"weights_every is {self.weights_every}, which does not divide select_every ({self.select_every}): "
                f"new destinations need new weights, so use a divisor such as {_divisor_near(self)}."
            )
        if self.kv_ratio is not None and self.scope != "site":
            raise ConfigError(
                f"kv_ratio merges keys apart from queries, which needs scope='site', and scope is {self.scope!r}: "
                f"leave kv_ratio out, or set scope='site'."
            )

    def _check_ratio(self) -> None:
        if self.kv_ratio is None:
            super()._check_ratio()
            return
        for field in ("ratio", "kv_ratio"):
            value = getattr(self, field)
            if not _is_number(value) or not 0 <= value < 1:
                raise ConfigError(
                    f"{field} is {value!r}: with kv_ratio set it takes a number from 0 up to, not including, 1."
                )
        if self.ratio == 0 and self.kv_ratio == 0:
            raise ConfigError("ratio and kv_ratio are both 0, so nothing would be merged: raise one of them.")

    @property
    def refresh_every(self) -> tuple[int, int]:
        return self.select_every, self.weights_every

    @property
    def keys_apart(self) -> bool:
        return self._keys_ratio != self.ratio

    @property
    def _keys_ratio(self) -> float:
        return self.ratio if self.kv_ratio is None else self.kv_ratio

    def layout(self, grid: tuple[int, ...]) -> Layout:
        regions = self._regions(grid)
        self._refuse_empty_regions(regions)
        kept = [
            regions.tokens if ratio == 0 else regions.kept(ratio) * regions.count
            for ratio in (self.ratio, self._keys_ratio)
        ]
        if min(kept) == regions.tokens:
            raise CannotMerge(
                f"ratio {max(self.ratio, self._keys_ratio)} keeps all {regions.smallest} tokens of a region; "
                f"raise ratio or choose a larger tile"
            )
        return Layout(grid, regions.tokens, kept[0], kept[1], regions)

    def _refuse_empty_regions(self, regions: Regions) -> None:
        """A region cannot keep less than one token, and a ratio is never capped in silence."""
        size = regions.tokens / regions.count
        ratio = max(self.ratio, self._keys_ratio)
        if size * (1 - ratio) < 0.5:
            raise ConfigError(
                f"ratio {ratio} would leave nothing of a region of {size:g} tokens: use at most "
                f"{math.floor((1 - 1 / size) * 1000) / 1000}, or a larger tile."
            )

    def _regions(self, grid: tuple[int, ...]) -> Regions:
        if self.region == "global":
            return regions_of(grid, grid)
        if self.region == "stripe":
            return regions_of(grid, stripe_tile(grid, self.tile[-2] * self.tile[-1]))
        # A flat tile on a video grid is one frame deep; a deep tile on an image has no frames to span.
        tile = (*[1] * (len(grid) - len(self.tile)), *self.tile)[-len(grid) :]
        if any(side > length for side, length in zip(tile, grid, strict=True)):
            raise ConfigError(
                f"tile {_by(tile)} is larger than the {_by(grid)} grid of tokens: use a tile of at most {_by(grid)}, "
                f"or min_tokens={regions_of(grid, grid).tokens + 1} to leave that level alone."
            )
        return regions_of(grid, tile)

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, place: Place, previous: Operators | None) -> Operators:
        assert layout.regions is not None
        regions = layout.regions
        in_regions = tokens if place.in_region_order else regions.gather(tokens)
        unit = unit_tokens(in_regions).reshape(tokens.shape[0], regions.count, regions.size, -1)  # (B, R, n, C)
        picks = previous.picks if previous is not None else None
        if picks is None:
            most = max(kept for kept in (layout.kept, layout.kept_keys) if kept < layout.tokens)
            picks = self._select(unit, most // regions.count, regions, place.one_for_batch)
        operators: dict[int, LinearOperator | None] = {layout.tokens: None}
        for kept in (layout.kept, layout.kept_keys):
            if kept not in operators:
                # The first k greedy picks are what choosing k would have given: one selection serves both ratios.
                fewer = picks[..., : kept // regions.count]
                operators[kept] = self._operator(unit, fewer, regions, tokens.dtype, place.in_region_order)
        return Operators(operators[layout.kept], operators[layout.kept_keys], picks)

    def _select(self, unit: Tensor, count: int, regions: Regions, one_for_batch: bool) -> Tensor:
        """(B, R, n, C) -> (B, R, count): places of the destinations within their regions."""
        similarity = cosine_similarity(unit)  # (B, R, n, n)
        # Two tokens that are each other's nearest gain exactly the same. In steps this coarse sums are exact, so such a
        # tie goes to the first of them, and not to rounding, which depends on the rest of the batch.
        similarity = similarity.mul_(SIMILARITY_STEPS).round_().div_(SIMILARITY_STEPS)
        if regions.valid is None:
            available = torch.ones(similarity.shape[1:3], dtype=torch.bool, device=unit.device)
        else:
            available = regions.valid
            similarity = similarity * available.unsqueeze(-2)  # padding need not be represented
        if one_for_batch:
            # Side by side the samples' tokens are all there is to represent, so gains add up over the batch.
            similarity = torch.cat(similarity.unbind(), dim=-1).unsqueeze(0)
        selector = self.selector if callable(self.selector) else SELECTORS[self.selector]
        picks = selector(similarity, count, available)
        if picks.shape != (*similarity.shape[:2], count):
            raise ConfigError(
                f"selector gave indices of shape {tuple(picks.shape)}: for {count} of {similarity.shape[2]} candidates "
                f"it must give (samples, regions, {count}), here {(*similarity.shape[:2], count)}."
            )
        return picks.expand(unit.shape[0], -1, -1)

    def _operator(
        self, unit: Tensor, picks: Tensor, regions: Regions, dtype: torch.dtype, in_region_order: bool
    ) -> LinearOperator:
        batch, count, size, channels = unit.shape
        offsets = torch.arange(count, device=unit.device).view(1, count, 1) * size
        places = (picks + offsets).view(batch, -1)  # (B, M) among all places of the sample
        if self.attend == "global":
            valid = None if regions.valid is None else regions.valid.view(1, -1).expand(batch, -1)
            weights = assignment_weights(unit.reshape(batch, -1, channels), places, self.temperature, valid)
        else:
            valid = None if regions.valid is None else regions.valid.repeat(batch, 1)
            groups = unit.reshape(batch * count, size, channels)
            weights = assignment_weights(groups, picks.reshape(batch * count, -1), self.temperature, valid)
        up = unmerge_by_pinv(weights) if self.unmerge == "pinv" else unmerge_by_transpose(weights)
        return LinearOperator(
            down=merge_matrix(weights).to(dtype),
            up=up.to(dtype),
            regions=None if in_region_order or regions.natural else regions,
            mass=represented(weights).view(batch, -1),
            destinations=places if in_region_order else regions.order[places],
        )


def _by(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))


def _divisor_near(config: ToMA) -> int:
    divisors = [d for d in range(1, config.select_every + 1) if config.select_every % d == 0]
    return max(d for d in divisors if d <= config.weights_every)
