"""What every merging method shares: its options, their validation, and the two functions a method fills in.

The type of a config selects the method. A new method is a frozen dataclass derived from `MergeConfig` with a
`layout` (what becomes of a grid, known before any token is seen) and a `plan` (operators from tokens).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from tokenmerge.config.checks import check_choice, check_flag, check_step_speedup, check_whole, listed, store_tuple
from tokenmerge.config.ratio import Ratio, is_number, is_ratio, moments, ratio_at, stored_ratio, varies
from tokenmerge.errors import ConfigError
from tokenmerge.methods.interfaces import BlockContext, CannotMerge, Layout, Operators

Scope = Literal["site", "block", "stack"]
Share = Literal["layer", "level", "model"]
PARTS = ("self", "cross", "mlp")
# Up to this ratio, whole steps that run merged as well take too long for what they gain (docs/quality.md).
LEARNS_ABOVE = 0.75


@dataclass(frozen=True, kw_only=True)
class MergeConfig:
    """Options common to every method.

    ratio: fraction of the tokens merged away; 0.5 keeps half. More is faster and blurs more. A list is stretched over
        the steps: [0.2, 0.6] merges less in the first half. 0 leaves those steps alone. Every change of the ratio needs
        a new selection, so few different values are fastest.
    parts: which parts of a block run on merged tokens: self-attention, cross-attention, MLP. All three are fastest;
        "self" alone is safest.
    scope: merge around each part ("site", keeps most detail), once per block ("block"), or once per run of
        consecutive blocks ("stack", least overhead; in UNets the projections around them are merged too). None is
        "stack" with full steps, if the other options and the model allow it, and "site" otherwise.
    share: which blocks use one plan: each its own ("layer"), those of one UNet level ("level"), all on the same grid
        ("model"). Wider sharing means fewer selections.
    select_every: Re-select destination tokens every this many steps. With full steps, re-selection waits for the next.
    merge_every: Merge at every this many steps and run the others full. 1 is fastest; ToMA's authors use 3.
    detail_every: Run every this many steps full, and add the merging error measured there to the merged steps that
        follow (see `tokenmerge.engine.correction`). Fewer is closer to the image and slower; 0 never does. None takes
        what suits the method. Costs memory for two outputs of each span; a wider scope has fewer.
    detail_within: Also run a full step once this fraction of the noise has been removed since the last one (never two
        in a row). Matters below about 15 steps. None leaves it to the method.
    thin_keys: Whether self-attention on fine levels reads one key of every tile at full steps, if the model takes keys
        as an argument (UNets, PixArt). Up to twice as fast, with no visible effect.
    proportional: keys that stand for many tokens weigh that much more in self-attention. Costs a few per cent of the
        attention and keeps the image closer.
    skip_blocks: blocks left alone: a number (the first so many), two numbers (so many first and so many last), or
        names and name patterns such as "mid_block.*". None takes what suits the model (10 for Flux, none elsewhere).
    min_tokens: levels with fewer tokens are left alone, because merging them costs more than it saves.
    step_speedup: Compute one in this many denoising steps, on average, and forecast what the model returns at the
        others. 1 computes all; 2 halves the time and stays close to the image from about 10 steps on. Try 1.5 to 2.5.
    """

    ratio: Ratio = 0.5
    parts: tuple[str, ...] = PARTS
    scope: Scope | None = "site"
    share: Share = "level"
    select_every: int = 10
    merge_every: int = 1
    detail_every: int | None = 0
    detail_within: float | None = None
    thin_keys: bool = True
    proportional: bool = False
    skip_blocks: int | tuple[int, int] | tuple[str, ...] | None = None
    min_tokens: int = 256
    step_speedup: float = 1.0

    scopes: ClassVar[tuple[str, ...]] = ("site", "block", "stack")
    allowed_parts: ClassVar[tuple[str, ...]] = PARTS
    ratios: ClassVar[tuple[str, ...]] = ("ratio",)  # the fields that are ratios
    takes_mask: ClassVar[bool] = False  # does it fill in `layout_keeping`?
    _methods: ClassVar[dict[str, type[MergeConfig]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        MergeConfig._methods[cls.__name__] = cls

    def __post_init__(self) -> None:
        self._check_ratio()
        store_tuple(self, "parts")
        if not self.parts:
            raise ConfigError(f"parts is empty: name at least one of {listed(self.allowed_parts)}.")
        for part in self.parts:
            check_choice(self, "parts", part, self.allowed_parts)
        if self.scope is not None:
            check_choice(self, "scope", self.scope, self.scopes)
        check_choice(self, "share", self.share, ("layer", "level", "model"))
        check_whole("select_every", self.select_every, least=1)
        check_whole("merge_every", self.merge_every, least=1)
        self._check_detail()
        if self.merged_per != "site" and set(self.parts) != set(self.allowed_parts):
            raise ConfigError(
                f"parts is {self.parts!r} and scope is {self.scope!r}: merging whole blocks merges every part, so give "
                f"parts={self.allowed_parts!r}, or set scope='site'."
            )
        check_whole("min_tokens", self.min_tokens, least=0)
        check_flag("proportional", self.proportional)
        check_flag("thin_keys", self.thin_keys)
        self._check_skip_blocks()
        check_step_speedup(self.step_speedup)

    # -- what a method fills in ------------------------------------------------------------------------------

    def layout(self, grid: tuple[int, ...]) -> Layout:
        """What becomes of a grid of tokens; raises CannotMerge with the reason where nothing would."""
        raise NotImplementedError

    def layout_at(self, grid: tuple[int, ...], downsample: int) -> Layout:
        """`layout` for a level that is `downsample` times coarser, per side, than the model's finest.

        Only methods that treat levels differently fill this in.
        """
        return self.layout(grid)

    def layout_keeping(self, grid: tuple[int, ...], downsample: int, aside: tuple[int, ...]) -> Layout:
        """`layout_at` with the tokens `aside` kept as they are: none merged into them, and they into none."""
        raise NotImplementedError

    def plan(self, tokens: Tensor, layout: Layout, place: BlockContext, previous: Operators | None) -> Operators:
        """Operators for tokens (B, N, C). With `previous`, its destinations stay and only weights are made anew."""
        raise NotImplementedError

    @property
    def refresh_every(self) -> tuple[int, int]:
        """Steps between new destinations, and between new weights."""
        return self.select_every, self.select_every

    @property
    def varies(self) -> bool:
        """Whether a ratio changes over the steps."""
        return any(varies(getattr(self, field)) for field in self.ratios)

    @property
    def whole_every(self) -> int:
        """Steps from one that runs whole for its detail to the next; 0 where none does."""
        return self.detail_every or 0

    @property
    def whole_within(self) -> float:
        """The share of the noise after which such a step comes sooner; infinite where that does not count."""
        return math.inf if self.detail_within is None else self.detail_within

    @property
    def learns(self) -> bool:
        """Do whole steps run merged as well, to tell what that loses? Where that is most, and takes least.

        What is lost at one ratio is not what is lost at another, so ratios that change do without.
        """
        return self.whole_every > 0 and not self.varies and self.merges_most

    @property
    def merges_most(self) -> bool:
        """Is so much merged that to run merged as well takes a whole step little longer?"""
        return self.number("ratio") > LEARNS_ABOVE

    @property
    def redraws(self) -> bool:
        """Are destinations drawn at random, other ones for each choice of them?"""
        return False

    @property
    def merged_per(self) -> Scope:
        """The scope; where that is None, the one that suits the other options (a model may not allow it)."""
        if self.scope is not None:
            return self.scope
        return "stack" if self.whole_every and self._takes_whole_blocks else "site"

    def with_scope(self, scope: Scope) -> Self:
        """The same config with its scope decided."""
        return dataclasses.replace(self, scope=scope)

    def with_detail(self, every: int, **others: Any) -> Self:
        """The same config with a step run whole exactly every so many, and other options changed."""
        return dataclasses.replace(self, detail_every=every, detail_within=None, **others)

    @property
    def _takes_whole_blocks(self) -> bool:
        """Do the options but for the scope allow that whole blocks are merged?"""
        every_part = set(self.parts) == set(self.allowed_parts)
        return "stack" in self.scopes and every_part and not self.merges_only_keys

    def moments(self) -> list[float]:
        """Each progress at which a ratio may change (see `config.ratio.moments`)."""
        return sorted(set().union(*(moments(getattr(self, field)) for field in self.ratios)))

    def number(self, field: str) -> float:
        """A ratio of a config that has been asked for with `at`, where it must be a number."""
        value: float = getattr(self, field)
        if varies(value):
            raise ConfigError(f"{field} is {value!r}, which changes: ask for it with at(progress) first.")
        return value

    def at(self, progress: float) -> Self | None:
        """The same config with the ratios of that step, as numbers; None if those merge nothing."""
        numbers = {field: ratio_at(getattr(self, field), progress) for field in self.ratios}
        # Keys may be merged apart, but not where whole blocks are.
        merges = any(numbers.values()) if self.merged_per == "site" else numbers["ratio"]
        if not merges:
            return None
        # Nor is there detail to lose where keys alone are merged.
        return dataclasses.replace(self, **numbers) if numbers["ratio"] else self.with_detail(0, **numbers)

    @property
    def keys_apart(self) -> bool:
        """Are keys and values of self-attention merged otherwise than queries? Not every model allows it."""
        return False

    @property
    def counts_keys(self) -> bool:
        """Does an option say how many keys merged steps read? Then `thin_keys` is for whole ones."""
        return self.keys_apart

    @property
    def picks_keys(self) -> bool:
        """Are keys that are merged apart some of the tokens, as they are? Every attention can do that."""
        return False

    @property
    def keys_of_all(self) -> bool:
        """Are keys that are merged apart of all tokens, and not some of those that are left?"""
        return self.merges_only_keys

    @property
    def merges_only_keys(self) -> bool:
        """Do all tokens go on as they are, but for keys and values of self-attention?"""
        return False

    # -- saving and loading ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All options as plain JSON values, with the method's name under "method"."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in values.items():
            if callable(value):
                raise ConfigError(
                    f"{name} is a function, which cannot be saved: use one of the built-in names instead."
                )
        plain = {name: _without_tuples(value) for name, value in values.items()}
        return {"method": type(self).__name__, **plain}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> MergeConfig:
        """The inverse of `to_dict`. Called on a method itself, "method" may be left out."""
        values = dict(values)
        name = values.pop("method", cls.__name__)
        method = MergeConfig._methods.get(name) if isinstance(name, str) else None
        if method is None:
            raise ConfigError(f"method {name!r} is not known: use one of {listed(MergeConfig._methods)}.")
        return method.build(values)

    @classmethod
    def build(cls, values: dict[str, Any]) -> Self:
        """A config of this method from option names and values; an unknown name is an error that suggests one."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
                raise ConfigError(f"{cls.__name__} has no option {name!r}: {hint}")
        return cls(**values)

    # -- validation ------------------------------------------------------------------------------------------

    def _check_ratio(self) -> None:
        object.__setattr__(self, "ratio", stored_ratio("ratio", self.ratio))
        if not varies(self.ratio) and (not is_ratio(self.ratio) or self.ratio == 0):
            raise ConfigError(
                f"ratio is {self.ratio!r}: it is the fraction of tokens merged away, a number between 0 and 1 "
                f"(both excluded), such as 0.5; or a list of numbers over the steps."
            )

    def _check_detail(self) -> None:
        if self.detail_every is not None:
            self._check_detail_every(self.detail_every)
        share = self.detail_within
        if share is None:
            return
        if not is_number(share) or not 0 < share <= 1:
            raise ConfigError(
                f"detail_within is {share!r}: it is a share of the noise, a number above 0 and up to 1, such as 0.35."
            )
        if not self.whole_every:
            raise ConfigError(
                f"detail_within is {share!r}, and with detail_every {self.detail_every!r}, merge_every "
                f"{self.merge_every} and ratio {self.ratio!r} no step runs whole for its detail: leave detail_within "
                f"out."
            )

    def _check_detail_every(self, every: int) -> None:
        check_whole("detail_every", every, least=0)
        if every == 1:
            raise ConfigError("detail_every is 1, so every step would run whole: use 2 or more, or 0 for none.")
        if every and self.merge_every > 1:
            raise ConfigError(
                f"detail_every is {every} and merge_every {self.merge_every}: both say which steps run "
                f"whole, so set only one of them."
            )
        if every and self.merges_only_keys:
            raise ConfigError(
                f"detail_every is {every}, and where only keys and values are merged no detail is lost: "
                f"leave it out, or merge queries too (ToMA with a ratio above 0)."
            )

    @staticmethod
    def _refuse_coarser(downsample: int, most: int | None) -> None:
        """For methods that have a `max_downsample`."""
        if most is not None and downsample > most:
            raise CannotMerge(f"{downsample} times coarser than the model's finest level, and max_downsample={most}")

    def _check_skip_blocks(self) -> None:
        value = self.skip_blocks
        if value is None:
            return
        if isinstance(value, int):
            check_whole("skip_blocks", value, least=0)
            return
        store_tuple(self, "skip_blocks")
        given: tuple[Any, ...] = self.skip_blocks  # type: ignore[assignment]
        counts = len(given) == 2 and all(isinstance(item, int) and not isinstance(item, bool) for item in given)
        if counts and min(given) >= 0:
            return
        if not all(isinstance(name, str) for name in given):
            raise ConfigError(
                f"skip_blocks is {value!r}: it takes a number, two numbers (so many first, so many last), or block "
                f"names and patterns."
            )


def _without_tuples(value: Any) -> Any:
    return [_without_tuples(item) for item in value] if isinstance(value, tuple) else value
