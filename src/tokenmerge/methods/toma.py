"""ToMA: Token Merge with Attention (Zheng et al., ICML 2025, arXiv:2509.10918)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tokenmerge.config.base import LEARNS_ABOVE, MergeConfig, Scope
from tokenmerge.config.checks import check_choice, check_whole, store_tuple
from tokenmerge.config.ratio import Ratio, goes_below, is_ratio, stored_ratio, varies
from tokenmerge.errors import ConfigError
from tokenmerge.methods.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.methods.toma_plan import make_plan
from tokenmerge.ops.regions import Regions, regions_of, stripe_tile
from tokenmerge.ops.selection import SELECTORS, Selector

# One step in so many runs whole, where detail_every is None: fewer where it tells exactly what merging loses.
WHOLE_STEPS, TELLING_STEPS = 4, 6
# And sooner where this share of the noise is gone: of 12 steps every fifth, of 8 every third, of 4 every second.
WHOLE_WITHIN = 0.35


@dataclass(frozen=True, kw_only=True)
class ToMA(MergeConfig):
    """Destinations by facility location, merge and unmerge by attention-like products, plans reused over steps.

    ToMA() is the best balance of speed and picture that the embedded models show (docs/quality.md): one token kept of
    every 4 x 4 tile, and one step in six run whole (more where steps are few), which tells the others what that loses.

    region: where destinations are selected. "tile" keeps most of the picture, "stripe" needs no reordering of tokens,
        "global" searches the whole grid and is slow to select in.
    tile: height and width of a tile in tokens (frames too, for video, in front). A stripe is rows of the grid with as
        many tokens. Small tiles are cheaper to select in and stay closer to the picture; the paper's is (8, 8).
    attend: where tokens are assigned to destinations: within their "region", or "global".
    selector: "facility_location", "random" (good for keys merged apart), "grid", or a function (see
        `tokenmerge.ops.selection`).
    unmerge: "transpose" copies back and is fast; "pinv" is the least-squares inverse, slower, and rarely better.
    kv_ratio: fraction merged away from keys and values of self-attention, where that should differ from `ratio`.
        With ratio=0 only keys and values are merged; with kv_ratio=0 only queries are. Takes a list as well.
        Keys merged apart are picked and weighed, not averaged: an average is shorter than each of them. With a wider
        scope they are picked among the merged tokens: there kv_ratio must be the larger of the two. In models but
        UNets and PixArt a smaller one saves less, for their attention is then given all tokens (docs/options.md).
    max_downsample: levels up to this many times coarser, per side, than the model's finest are merged; None merges
        all. 1 merges the finest alone, which has most tokens to spare.
    weights_every: steps for which merge weights are kept; must divide `select_every`.
    detail_every: None is every sixth step where that tells exactly what is lost (above a ratio of 0.75, and at 0.75
        with 2 x 2 tiles), every fourth elsewhere, and none where only keys are merged or `merge_every` says which steps
        run whole.
    detail_within: None is 0.35 where detail_every is None: of 10 steps every fourth runs whole then, of 4 every second.
    """

    ratio: Ratio = 0.9375
    scope: Scope | None = None
    select_every: int = 5
    detail_every: int | None = None
    region: Literal["tile", "stripe", "global"] = "tile"
    tile: tuple[int, ...] = (4, 4)
    attend: Literal["region", "global"] = "region"
    selector: str | Selector = "facility_location"
    unmerge: Literal["transpose", "pinv"] = "transpose"
    kv_ratio: Ratio | None = None
    max_downsample: int | None = None
    proportional: bool = True
    weights_every: int = 5

    ratios: ClassVar[tuple[str, ...]] = ("ratio", "kv_ratio")
    takes_mask: ClassVar[bool] = True

    @classmethod
    def paper(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA: destinations per stripe, assignment over the whole grid."""
        return dataclasses.replace(cls.paper_stripe(ratio), attend="global")

    @classmethod
    def paper_stripe(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA-stripe: destinations and assignment per stripe."""
        return dataclasses.replace(cls.paper_tile(ratio), region="stripe")

    @classmethod
    def paper_tile(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA-tile: destinations and assignment per 8 x 8 tile; its best images."""
        return cls(ratio=ratio, scope="site", tile=(8, 8), proportional=False, select_every=10, detail_every=0)

    @classmethod
    def paper_block(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA*: merged once per block instead of around each of its parts."""
        return dataclasses.replace(cls.paper(ratio), scope="block")

    @classmethod
    def released(cls, ratio: float = 0.5) -> ToMA:
        """What the authors' released code does: ToMA-tile that merges at every third step and runs the others whole.

        That code is for Flux alone, where the first ten blocks are left alone, as here by default. It can pick one
        destination twice where a tile is flat; here destinations are always distinct.
        """
        return dataclasses.replace(cls.paper_tile(ratio), merge_every=3)

    @classmethod
    def keys(cls, ratio: float = 0.75) -> ToMA:
        """Only keys and values of self-attention on the finest level: of each 2 x 2 tile one, drawn anew at every step.

        Hardly to be seen in Stable Diffusion UNets; in transformers of one level it costs more of the picture. As fast
        as self-attention is slow: most on small models, large images and videos.
        """
        return cls(
            ratio=0,
            kv_ratio=ratio,
            parts=("self",),
            tile=(2, 2),
            selector="random",
            max_downsample=1,
            select_every=1,
            weights_every=1,
        )

    @classmethod
    def plain(cls, ratio: float = 0.5, scope: Scope = "site") -> ToMA:
        """Every step merged alike, without detail from whole ones: to see what merging alone costs and gains."""
        return cls(ratio=ratio, scope=scope, detail_every=0)

    def __post_init__(self) -> None:
        self._check_tile()  # how much is merged depends on it
        super().__post_init__()
        check_choice(self, "region", self.region, ("tile", "stripe", "global"))
        check_choice(self, "attend", self.attend, ("region", "global"))
        check_choice(self, "unmerge", self.unmerge, ("transpose", "pinv"))
        if not callable(self.selector):
            check_choice(self, "selector", self.selector, tuple(SELECTORS))
        if self.max_downsample is not None:
            check_whole("max_downsample", self.max_downsample, least=1)
        check_whole("weights_every", self.weights_every, least=1)
        if self.select_every % self.weights_every:
            raise ConfigError(
                f"weights_every is {self.weights_every}, which does not divide select_every ({self.select_every}): "
                f"new destinations need new weights, so use a divisor such as {_divisor_near(self)}."
            )
        if self.keys_apart and self.merged_per != "site":
            self._check_keys_among_merged()

    def _check_tile(self) -> None:
        store_tuple(self, "tile")
        if len(self.tile) not in (2, 3):
            raise ConfigError(f"tile is {self.tile!r}: it takes (height, width), or (frames, height, width) for video.")
        for side in self.tile:
            check_whole("tile", side, least=1)

    def _check_keys_among_merged(self) -> None:
        """Where whole blocks are merged, keys are picked among the tokens that are left."""
        surely_more = not self.varies and self.keys_of_all
        if self.merges_only_keys or surely_more:
            raise ConfigError(
                f"kv_ratio is {self.kv_ratio!r}, ratio {self.ratio!r} and scope {self.scope!r}: if whole blocks are "
                f"merged, keys are picked among the tokens that are left, which needs a ratio above 0 and a kv_ratio "
                f"above that. Change those, or set scope='site'."
            )

    @property
    def _takes_whole_blocks(self) -> bool:
        return super()._takes_whole_blocks and not (self.keys_apart and (self.keys_of_all or self.varies))

    def _check_ratio(self) -> None:
        if self.kv_ratio is None:
            super()._check_ratio()
            return
        for field in self.ratios:
            value = stored_ratio(field, getattr(self, field))
            object.__setattr__(self, field, value)
            if not varies(value) and not is_ratio(value):
                raise ConfigError(
                    f"{field} is {value!r}: with kv_ratio set it takes a number from 0 up to, not including, 1."
                )
        if self.ratio == 0 and self.kv_ratio == 0:
            raise ConfigError("ratio and kv_ratio are both 0, so nothing would be merged: raise one of them.")

    @property
    def refresh_every(self) -> tuple[int, int]:
        return self.select_every, self.weights_every

    @property
    def whole_every(self) -> int:
        if self.detail_every is not None:
            return self.detail_every
        if self.merges_only_keys or self.merge_every > 1:
            return 0
        return TELLING_STEPS if not self.varies and self.merges_most else WHOLE_STEPS

    @property
    def whole_within(self) -> float:
        by_default = self.detail_every is None and self.detail_within is None
        return WHOLE_WITHIN if by_default else super().whole_within

    @property
    def merges_most(self) -> bool:
        ratio = self.number("ratio")
        one_of_each_tile = self.region == "tile" and round(math.prod(self.tile) * (1 - ratio)) <= 1
        return super().merges_most or (one_of_each_tile and ratio >= LEARNS_ABOVE)

    @property
    def _chooses_by_default(self) -> bool:
        """Is it all the same to the user which token is left of a tile, and where it sits?"""
        return self.selector == "facility_location"

    @property
    def keys_apart(self) -> bool:
        return self.kv_ratio is not None and self.kv_ratio != self.ratio

    @property
    def counts_keys(self) -> bool:
        return self.kv_ratio is not None

    @property
    def picks_keys(self) -> bool:
        return True

    @property
    def keys_of_all(self) -> bool:
        if not self.keys_apart:
            return False
        return self.merges_only_keys or goes_below(self.kv_ratio, self.ratio)

    @property
    def merges_only_keys(self) -> bool:
        return self.ratio == 0

    def _numbers(self) -> tuple[float, float]:
        """The ratios of queries and of keys."""
        ratio = self.number("ratio")
        return ratio, ratio if self.kv_ratio is None else self.number("kv_ratio")

    @property
    def redraws(self) -> bool:
        return self.selector == "random"

    def layout(self, grid: tuple[int, ...]) -> Layout:
        return self.layout_keeping(grid, 1, ())

    def layout_at(self, grid: tuple[int, ...], downsample: int) -> Layout:
        return self.layout_keeping(grid, downsample, ())

    def layout_keeping(self, grid: tuple[int, ...], downsample: int, aside: tuple[int, ...]) -> Layout:
        self._refuse_coarser(downsample, self.max_downsample)
        if len(aside) == math.prod(grid):
            raise CannotMerge("keep is white everywhere here, so nothing is left to merge")
        regions = self._regions(grid, aside)
        self._refuse_empty_regions(regions)
        kept = [
            regions.tokens if ratio == 0 else regions.kept(ratio) * regions.count + regions.aside
            for ratio in self._numbers()
        ]
        if min(kept) == regions.tokens:
            raise CannotMerge(
                f"ratio {max(self._numbers())} keeps all {regions.smallest} tokens of a region; "
                f"raise ratio or choose a larger tile"
            )
        if kept[0] == regions.tokens and self.merged_per != "site":
            raise CannotMerge(
                f"ratio {self.number('ratio')} keeps all {regions.smallest} tokens of a region, which leaves none to "
                f"pick keys among; raise ratio, choose a larger tile, or set scope='site'"
            )
        even = kept[1] == regions.count and not regions.padded and self.attend == "region"
        each = self._kept_of_each(kept[0], regions)
        averages = each == 1 and kept[0] == kept[1] and self._chooses_by_default and len(grid) in (2, 3)
        tiles = regions.tiles if averages else None
        return Layout(grid, regions.tokens, kept[0], kept[1], regions, even, each, tiles)

    def _kept_of_each(self, kept: int, regions: Regions) -> int:
        alike = self.attend == "region" and not regions.aside and not regions.padded
        return kept // regions.count if alike else 0

    def _refuse_empty_regions(self, regions: Regions) -> None:
        """A region cannot keep less than one token, and a ratio is never capped in silence."""
        size = (regions.tokens - regions.aside) / regions.count
        ratio = max(self._numbers())
        if size * (1 - ratio) < 0.5:
            raise ConfigError(
                f"ratio {ratio} would leave nothing of a region of {size:g} tokens: use at most "
                f"{math.floor((1 - 1 / size) * 1000) / 1000}, or a larger tile."
            )

    def _regions(self, grid: tuple[int, ...], aside: tuple[int, ...]) -> Regions:
        if self.region == "global":
            return regions_of(grid, grid, aside)
        if self.region == "stripe":
            return regions_of(grid, stripe_tile(grid, self.tile[-2] * self.tile[-1]), aside)
        # A flat tile on a video grid is one frame deep; a deep tile on an image has no frames to span.
        tile = (*[1] * (len(grid) - len(self.tile)), *self.tile)[-len(grid) :]
        if any(side > length for side, length in zip(tile, grid, strict=True)):
            raise ConfigError(
                f"tile {_by(tile)} is larger than the {_by(grid)} grid of tokens: use a tile of at most {_by(grid)}, "
                f"or min_tokens={regions_of(grid, grid).tokens + 1} to leave that level alone."
            )
        return regions_of(grid, tile, aside)

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, place: BlockContext, previous: Operators | None) -> Operators:
        return make_plan(self, tokens, layout, place, previous)


def _by(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))


def _divisor_near(config: ToMA) -> int:
    divisors = [d for d in range(1, config.select_every + 1) if config.select_every % d == 0]
    return max(d for d in divisors if d <= config.weights_every)
