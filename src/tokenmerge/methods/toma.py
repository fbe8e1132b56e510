"""ToMA: Token Merge with Attention (Zheng et al., ICML 2025, arXiv:2509.10918)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_choice, check_whole, store_tile, takes_arguments
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.config.ratio import Ratio
from tokenmerge.errors import ConfigError
from tokenmerge.methods.tiled import refuse_white_mask, tile_on
from tokenmerge.methods.toma_plan import make_plan
from tokenmerge.ops.regions import Regions, regions_of, stripe_tile
from tokenmerge.ops.selection import SELECTORS, Selector

Region = Literal["tile", "stripe", "tile+global", "stripe+global"]
REGIONS = ("tile", "stripe", "tile+global", "stripe+global")


@dataclass(frozen=True, kw_only=True)
class ToMA(MergeConfig):
    """Destination tokens by facility location, merge and unmerge by attention-like products, plans reused over steps.

    `ToMA()` is the paper's method with two changes that measured better: tiles of 4 x 4 and proportional attention.
    `ToMA.paper()` and its siblings are exactly the paper's.

    Args:
        ratio: float or list of float, default 0.5. The fraction of tokens merged away. More is faster and blurs more. A
            list is stretched over the steps: [0.2, 0.6] merges less in the first half, and 0 leaves steps alone. Try
            0.25 to 0.6 first.
        parts: tuple of str, default all three. The parts of a block that run on merged tokens: "self", "cross" and
            "mlp". All three are fastest. ("self",) stays closest to the unmerged image in a UNet.
        scope: str or None, default None. "site" merges around each part and keeps most detail, "block" once per block,
            "stack" once per run of blocks, which is fastest. None is "stack" with a correction and "site" without.
        keys: str, default "merged". Keys and values of self-attention: "merged" like the queries (fastest), "all"
            (closest to the unmerged image), or "sampled" (the destination tokens, unchanged). Try "all" first on models
            of one to four steps.
        correction: FullSteps or None, default None. `FullSteps(every=6, within=0.35)` runs some steps full and corrects
            the others: slower, and much closer to the unmerged image. Try every=4 first.
        proportional: bool, default True. Weights each key by the number of tokens it stands for. Costs a few per cent
            of the attention and stays closer to the unmerged image.
        skip_blocks: int, pair of int, or names, default None. Blocks left alone: the first n, the first n and the last
            m, or names such as "mid_block.*". More is slower and closer to the unmerged image. None is what suits the
            model (10 for Flux, none elsewhere). Try (1, 1) first.
        min_tokens: int, default 256. Levels with fewer tokens are left alone, because merging them saves no time. The
            image changes little. Try 64 to 1024 first.
        select_every: int or pair of int, default 5. Selects destinations and computes merge weights every this many
            steps. (10, 5), the paper's, selects every 10 steps and computes weights every 5. More is faster; the image
            follows an older selection. With a correction, both wait for the next full step. Try 1 to 10 first.
        region: str, default "tile". Where destinations are selected and tokens are assigned to them: in each "tile"
            (best image), or each "stripe" of rows (no reordering of tokens). "tile+global" and "stripe+global" select
            there and assign over the whole grid, which is slow on a CPU.
        tile: int or tuple of int, default (4, 4). Height and width of a tile in tokens, one number for a square (with
            frames in front for video). A stripe has as many tokens. Small tiles select faster and stay closer to the
            unmerged image. Try 2, 4 and 8 first.
        selector: str or function, default "facility_location". How destinations are chosen. "random" and "grid" look at
            no token: a little faster, and on flat images as good. A function is one of yours
            (`tokenmerge.ops.selection`).
    """

    ratio: Ratio = 0.5
    proportional: bool = True
    select_every: int | tuple[int, int] = 5
    region: Region = "tile"
    tile: int | tuple[int, ...] = (4, 4)
    selector: str | Selector = "facility_location"

    takes_mask: ClassVar[bool] = True
    unmerges_by: ClassVar[Literal["transpose", "pseudo-inverse"]] = "transpose"

    @classmethod
    def paper(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA: destinations per stripe, assignment over the whole grid."""
        return dataclasses.replace(cls.paper_tile(ratio), region="stripe+global")

    @classmethod
    def paper_stripe(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA-stripe: destinations and assignment per stripe."""
        return dataclasses.replace(cls.paper_tile(ratio), region="stripe")

    @classmethod
    def paper_tile(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA-tile: destinations and assignment per 8 x 8 tile; its best images."""
        return cls(ratio=ratio, scope="site", tile=(8, 8), proportional=False, select_every=(10, 5))

    @classmethod
    def paper_block(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA*: merged once per block instead of around each of its parts."""
        return dataclasses.replace(cls.paper(ratio), scope="block")

    @classmethod
    def paper_pinv(cls, ratio: float = 0.5) -> ToMA:
        """The paper's ToMA unmerged by the pseudo-inverse (its Table 6): slower, and no better."""
        return PseudoInverseToMA.paper(ratio)

    @classmethod
    def released(cls, ratio: float = 0.5) -> ToMA:
        """What the authors' released code does: ToMA-tile that merges at every third step and runs the others full.

        That code is for Flux alone, with the first ten blocks left alone, as here by default. It can select one
        destination twice in a flat tile; here destinations are always distinct.
        """
        return ReleasedToMA.paper_tile(ratio)

    def __post_init__(self) -> None:
        store_tile(self, "tile")
        super().__post_init__()
        check_choice(self, "region", self.region, REGIONS)
        if not callable(self.selector):
            check_choice(self, "selector", self.selector, tuple(SELECTORS))
        elif not takes_arguments(self.selector, 3):
            raise ConfigError(
                f"selector is {self.selector!r}, which cannot be called with three arguments: it takes similarity, "
                f"count and available, as tokenmerge.ops.selection says."
            )
        self._check_select_every()

    def _check_select_every(self) -> None:
        given = self.select_every
        if isinstance(given, list):
            object.__setattr__(self, "select_every", tuple(given))
        elif not isinstance(given, tuple):
            check_whole("select_every", given, least=1)
        if len(self.refresh_every) != 2:
            raise ConfigError(f"select_every is {given!r}: it takes one number, or two (destinations, weights).")
        select, weights = self.refresh_every
        for number in (select, weights):
            check_whole("select_every", number, least=1)
        if select % weights:
            raise ConfigError(
                f"select_every is {given!r}: new destinations need new weights, so the second number must divide the "
                f"first, as in {(select, max(d for d in range(1, weights + 1) if select % d == 0))}."
            )

    @property
    def refresh_every(self) -> tuple[int, int]:
        given = self.select_every
        return given if isinstance(given, tuple) else (given, given)

    @property
    def assigns_globally(self) -> bool:
        """Whether tokens are assigned to destinations of the whole grid, and not of their region alone."""
        return self.region.endswith("+global")

    @property
    def resamples(self) -> bool:
        return self.selector == "random"

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        refuse_white_mask(grid, protected)
        regions, ratio = self._regions(grid, protected), self.number("ratio")
        size = (regions.tokens - regions.protected) / regions.count
        if size * (1 - ratio) < 0.5:  # a region keeps at least one token, and a ratio is never capped in silence
            raise ConfigError(
                f"ratio {ratio} would leave nothing of a region of {size:g} tokens: use at most "
                f"{math.floor((1 - 1 / size) * 1000) / 1000}, or a larger tile."
            )
        kept = regions.kept(ratio) * regions.count + regions.protected
        if kept == regions.tokens:
            raise CannotMerge(
                f"ratio {ratio} keeps all {regions.smallest} tokens of a region; raise ratio or choose a larger tile"
            )
        equal_mass = kept == regions.count and not regions.padded and not self.assigns_globally
        kept_keys = regions.tokens if self.keys == "all" else kept
        return Layout(grid, regions.tokens, kept, kept_keys, regions, equal_mass)

    def _regions(self, grid: tuple[int, ...], protected: tuple[int, ...]) -> Regions:
        assert isinstance(self.tile, tuple)
        if self.region.startswith("stripe"):
            return regions_of(grid, stripe_tile(grid, self.tile[-2] * self.tile[-1]), protected)
        return regions_of(grid, tile_on(grid, self.tile), protected)

    @torch.no_grad()
    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        return make_plan(self, tokens, layout, context, previous)


@dataclass(frozen=True, kw_only=True)
class ReleasedToMA(ToMA):
    """ToMA as its authors' code runs it: merged at every third step, the others full and without a correction."""

    merge_every: ClassVar[int] = 3


@dataclass(frozen=True, kw_only=True)
class PseudoInverseToMA(ToMA):
    """ToMA unmerged by least squares, for the paper's Table 6."""

    unmerges_by: ClassVar[Literal["transpose", "pseudo-inverse"]] = "pseudo-inverse"
