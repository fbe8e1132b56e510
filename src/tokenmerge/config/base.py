"""What every merging method shares: its options, their validation, and the two functions a method fills in.

The type of a config selects the method. A new method is a frozen dataclass derived from `MergeConfig` with a
`layout` (what becomes of a grid, known before any token is seen) and a `plan` (operators from tokens).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from tokenmerge.config.checks import (
    check_choice,
    check_flag,
    check_names,
    check_step_speedup,
    check_whole,
    listed,
    store_tuple,
)
from tokenmerge.config.correction import FullSteps, read_correction
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.config.ratio import Ratio, is_ratio, moments, ratio_at, stored_ratio, varies
from tokenmerge.errors import ConfigError, nearest

Scope = Literal["site", "block", "stack"]
Keys = Literal["merged", "all", "sampled"]
Share = Literal["layer", "level"]
PARTS = ("self", "cross", "mlp")


@dataclass(frozen=True, kw_only=True)
class MergeConfig:
    """Options common to every method.

    Args:
        parts: tuple of str, default all three. The parts of a block that run on merged tokens: "self" (self-attention),
            "cross" (cross-attention) and "mlp". All three are fastest. ("self",) stays closest to the unmerged image in
            a UNet.
        scope: str or None, default None. "site" merges around each part and keeps most detail, "block" once per block,
            "stack" once per run of consecutive blocks, which has the least overhead. None is "stack" with a correction
            and "site" without, if the other options and the model allow it.
        keys: str, default "merged". The keys and values of self-attention. "merged": they follow the queries, which is
            fastest. "all": every key stays, which is slower and closest to the unmerged image. "sampled": one token of
            each merged group stands for it unchanged. "all" and "sampled" need scope "site". Try "all" first if a model
            of one to four steps loses too much.
        correction: FullSteps or None, default None. `FullSteps(every=6, within=0.35)` runs some steps full and corrects
            the merged steps that follow: slower, and much closer to the unmerged image. None merges every step.
        proportional: bool, default False. Weights each key by the number of tokens it stands for. Costs a few per cent
            of the attention and stays closer to the unmerged image.
        skip_blocks: int, pair of int, or names, default None. Blocks left alone: the first n, the first n and the last
            m, or names and patterns such as "mid_block.*". More is slower and closer to the unmerged image. None is
            what suits the model (10 for Flux, none elsewhere). Try (1, 1) first.
        min_tokens: int, default 256. Levels with fewer tokens are left alone, because merging them costs more time than
            it saves. Lower it for small images. Try 64 to 1024 first.
    """

    parts: tuple[str, ...] = PARTS
    scope: Scope | None = None
    keys: Keys = "merged"
    correction: FullSteps | None = None
    proportional: bool = False
    skip_blocks: int | tuple[int, int] | tuple[str, ...] | None = None
    min_tokens: int = 256

    # What a method can do; not options.
    scopes: ClassVar[tuple[str, ...]] = ("site", "block", "stack")
    allowed_parts: ClassVar[tuple[str, ...]] = PARTS
    allowed_keys: ClassVar[tuple[str, ...]] = ("merged", "all", "sampled")
    share: ClassVar[Share] = "level"  # which blocks use one plan: each has its own, or all of one level share it
    merge_every: ClassVar[int] = 1  # it merges at every this many steps; others run full, without a correction
    merges_tokens: ClassVar[bool] = True  # False: computed steps run full, and others are forecast
    merges_queries: ClassVar[bool] = True  # False: all tokens go on as they are, but for keys and values
    takes_mask: ClassVar[bool] = False  # its layouts leave `protected` tokens as they are
    _methods: ClassVar[dict[str, type[MergeConfig]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = MergeConfig._methods.get(cls.__name__)
        if known is not None and known.__module__ != cls.__module__:
            raise ConfigError(
                f"{cls.__module__}.{cls.__name__} has the name of another method, {known.__module__}.{cls.__name__}, "
                f"and a saved config could not say which of them is meant: give the class another name."
            )
        MergeConfig._methods[cls.__name__] = cls

    def __new__(cls, *values: Any, **options: Any) -> Self:
        check_names(cls, values, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.has_option("ratio"):
            self._check_ratio()
        store_tuple(self, "parts")
        if not self.parts:
            raise ConfigError(f"parts is empty: name at least one of {listed(self.allowed_parts)}.")
        for part in self.parts:
            check_choice(self, "parts", part, self.allowed_parts)
        check_choice(self, "keys", self.keys, self.allowed_keys)
        self._check_correction()
        self._check_scope()
        check_whole("min_tokens", self.min_tokens, least=0)
        check_flag("proportional", self.proportional)
        self._check_skip_blocks()
        check_step_speedup(self.step_speedup)

    # -- what a method fills in ------------------------------------------------------------------------------

    @property
    def ratio(self) -> Ratio:
        """The fraction of tokens merged away. Most methods have it as an option."""
        raise NotImplementedError

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        """What becomes of a grid of tokens; raises CannotMerge with the reason if nothing would.

        downsample: how much coarser, per side, the grid is than the model's finest.
        protected: tokens to leave unchanged: none is merged into them, and they into none. Empty unless `takes_mask`.
        """
        raise NotImplementedError

    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        """Operators for tokens (B, N, C). With `previous`, its destinations stay and only weights are computed."""
        raise NotImplementedError

    @property
    def refresh_every(self) -> tuple[int, int]:
        """Steps between new destinations, and between new weights. Plans that look at no token may stay for long."""
        return 10, 10

    @property
    def step_speedup(self) -> float:
        """One in this many denoising steps is computed, on average; the others are forecast. An option of some."""
        return 1.0

    @property
    def resamples(self) -> bool:
        """Whether destinations are sampled at random, so that each plan has others."""
        return False

    # -- what follows from the options ------------------------------------------------------------------------

    @classmethod
    def has_option(cls, name: str) -> bool:
        return any(field.name == name for field in dataclasses.fields(cls))

    @property
    def varies(self) -> bool:
        """Whether the ratio changes over the steps."""
        return varies(self.ratio)

    @property
    def separate_keys(self) -> bool:
        """Whether keys and values of self-attention are other tokens than queries. Not every model allows it."""
        return self.keys != "merged"

    @property
    def merged_per(self) -> Scope:
        """The scope; if that is None, the one that suits the other options (a model may not allow it)."""
        if self.scope is not None:
            return self.scope
        return "stack" if self.correction is not None and self._takes_blocks else "site"

    def with_scope(self, scope: Scope) -> Self:
        """The same config with its scope decided."""
        return dataclasses.replace(self, scope=scope)

    @property
    def _takes_blocks(self) -> bool:
        """Whether the options except the scope allow whole blocks to run on merged tokens."""
        every_part = set(self.parts) == set(self.allowed_parts)
        return "stack" in self.scopes and every_part and not self.separate_keys

    def moments(self) -> list[float]:
        """Each progress at which the ratio may change (see `config.ratio.moments`)."""
        return sorted(moments(self.ratio))

    def number(self, field: str) -> float:
        """A ratio of a config that came from `at`, so that it must be a number."""
        value: float = getattr(self, field)
        if varies(value):
            raise ConfigError(
                f"{field} is {value!r}, which changes over the steps: ask for it with at(progress) first."
            )
        return value

    def at(self, progress: float) -> Self | None:
        """The same config with the ratio of that step as a number; None if that merges nothing."""
        if not self.varies:
            return self
        ratio = ratio_at(self.ratio, progress)
        return dataclasses.replace(self, ratio=ratio) if ratio else None  # type: ignore[call-arg]

    # -- saving and loading ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All options as plain JSON values, with the method's name under "method"."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in values.items():
            if callable(value):
                raise ConfigError(
                    f"{name} is a function, which cannot be saved: use one of the built-in names instead."
                )
        return {"method": type(self).__name__, **{name: _plain(value) for name, value in values.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MergeConfig:
        """The inverse of `to_dict`. Called on a method itself, "method" may be left out."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{values!r} is no saved config: give a dict, as `to_dict` returns it.")
        values = dict(values)
        name = values.pop("method", cls.__name__)
        method = MergeConfig._methods.get(name) if isinstance(name, str) else None
        if method is None:
            near = nearest(name, MergeConfig._methods)
            meant = f"did you mean {near!r}? Otherwise " if near else ""
            raise ConfigError(f"method {name!r} is not known: {meant}use one of {listed(MergeConfig._methods)}.")
        return method.build(values)

    @classmethod
    def build(cls, values: dict[str, Any]) -> Self:
        """A config of this method from option names and values; an unknown name is an error that suggests one."""
        check_names(cls, (), values)
        return cls(**values)

    # -- validation ------------------------------------------------------------------------------------------

    def _check_ratio(self) -> None:
        object.__setattr__(self, "ratio", stored_ratio("ratio", self.ratio))
        if not varies(self.ratio) and (not is_ratio(self.ratio) or self.ratio == 0):
            raise ConfigError(
                f"ratio is {self.ratio!r}: it is the fraction of tokens merged away, a number between 0 and 1 "
                f"(both excluded), such as 0.5; or a list of numbers over the steps."
            )

    def _check_correction(self) -> None:
        object.__setattr__(self, "correction", read_correction(self.correction))
        if self.correction is None:
            return
        if not self.merges_queries:
            raise ConfigError(
                f"correction is {self.correction!r}, and {type(self).__name__} merges no queries, so there is no "
                f"merging error to correct: leave correction out."
            )
        if self.merge_every > 1:
            raise ConfigError(
                f"correction is {self.correction!r}, and {type(self).__name__} merges only every {self.merge_every} "
                f"steps: both say which steps run full. Leave correction out, or use ToMA."
            )

    def _check_scope(self) -> None:
        if self.scope is not None:
            check_choice(self, "scope", self.scope, self.scopes)
        if self.merged_per == "site":
            return
        if set(self.parts) != set(self.allowed_parts):
            raise ConfigError(
                f"parts is {self.parts!r} and scope is {self.scope!r}: merging whole blocks merges every part, so give "
                f"parts={self.allowed_parts!r}, or set scope='site'."
            )
        if self.separate_keys:
            raise ConfigError(
                f"keys is {self.keys!r} and scope is {self.scope!r}: inside a merged block only merged tokens are "
                f"left, so keys can only be 'merged'. Set scope='site', or keys='merged'."
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
                f"skip_blocks is {value!r}: it takes a number, two numbers (the first n and the last m blocks), or "
                f"block names and patterns."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, FullSteps):
        return dataclasses.asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
