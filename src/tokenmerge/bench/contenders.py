"""What is compared: the plain model, the limit, tokenmerge's methods, and the tomesd package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmerge.accelerations.base import require_package
from tokenmerge.accelerations.tomesd_package import LARGEST_RATIO, patched, reaching_downsample, why_not
from tokenmerge.api import merged
from tokenmerge.bench.blocks import BlockPass, without_blocks
from tokenmerge.bench.schedule import EVERY_STEP_ALIKE, Schedule, schedule_of, shortened
from tokenmerge.bench.subject import Subject
from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import ConfigError, UsageError
from tokenmerge.methods.named import METHODS, named_config, takes_ratio

NONE = "none"
LIMIT = "blocks-deleted"
PACKAGE = "tomesd-package"
BOUND = "lower-bound"


class Contender(Protocol):
    """A way to run the model, which can be put in and taken out again."""

    @property
    def method(self) -> str: ...

    @property
    def ratio(self) -> float | None:
        """None where there is nothing to merge."""

    @property
    def schedule(self) -> Schedule: ...

    def settings(self) -> dict[str, Any]:
        """Everything that was chosen, as plain JSON values."""

    def installed(self, subject: Subject) -> AbstractContextManager[Any]:
        """The model running this way; its first calls run through `schedule.phases`."""


@dataclass(frozen=True)
class Unmerged:
    """The model as it came."""

    method: str = NONE
    ratio: float | None = None
    schedule: Schedule = EVERY_STEP_ALIKE

    def settings(self) -> dict[str, Any]:
        return {}

    def installed(self, subject: Subject) -> AbstractContextManager[Any]:
        return nullcontext()


@dataclass(frozen=True)
class BlocksDeleted:
    """No transformer blocks at all: what would be left if merging made them free."""

    seen: Mapping[str, BlockPass]
    method: str = LIMIT
    ratio: float | None = None
    schedule: Schedule = EVERY_STEP_ALIKE

    def settings(self) -> dict[str, Any]:
        return {"blocks": len(self.seen)}

    def installed(self, subject: Subject) -> AbstractContextManager[Any]:
        return without_blocks(subject.model, subject.family, self.seen)


@dataclass(frozen=True)
class Merged:
    """One of tokenmerge's own methods."""

    method: str
    config: MergeConfig

    @property
    def ratio(self) -> float | None:
        return self.config.number("ratio")

    @property
    def schedule(self) -> Schedule:
        return schedule_of(self.config)

    def settings(self) -> dict[str, Any]:
        return self.config.to_dict()

    def installed(self, subject: Subject) -> AbstractContextManager[Any]:
        return merged(subject.model, shortened(self.config))


@dataclass(frozen=True)
class TomesdPackage:
    """The tomesd package, which matches tokens in every block of every step."""

    ratio: float | None
    max_downsample: int
    method: str = PACKAGE
    schedule: Schedule = EVERY_STEP_ALIKE

    def settings(self) -> dict[str, Any]:
        return {"package": "tomesd", "ratio": self.ratio, "max_downsample": self.max_downsample}

    def installed(self, subject: Subject) -> AbstractContextManager[Any]:
        assert self.ratio is not None
        return patched(subject.model, self.ratio, self.max_downsample)


def check_methods(methods: Sequence[str], ratios: Sequence[float], options: Mapping[str, Any] | None = None) -> None:
    """Raise a sentence for anything that could not be run, before a model is built."""
    known = (NONE, *METHODS, PACKAGE)
    for method in methods:
        if method not in known:
            raise UsageError(f"--methods has {method!r}, which is not known: use any of {', '.join(known)}.")
    if len(set(methods)) < len(methods):
        raise UsageError(f"--methods names one method twice ({', '.join(methods)}): name each once.")
    _check_ratios(ratios)
    for method, ratio in _pairs([method for method in methods if method in METHODS], ratios):
        _config(method, ratio, options)
    if PACKAGE in methods:
        _require_tomesd()
        if max(ratios) > LARGEST_RATIO:
            raise UsageError(
                f"--ratios has {max(ratios):g}, and the tomesd package merges at most {LARGEST_RATIO:g} (more it cuts "
                f"down without saying so): use smaller ratios, or leave {PACKAGE} out of --methods."
            )


def _require_tomesd() -> None:
    try:
        require_package("tomesd", "tomesd")
    except ConfigError as error:
        raise UsageError(f"{PACKAGE}: {error} Or leave it out of --methods.") from None


def _check_ratios(ratios: Sequence[float]) -> None:
    if not ratios:
        raise UsageError("--ratios is empty: give fractions of tokens to merge away, such as 0.5,0.75.")
    if len(set(ratios)) < len(ratios):
        raise UsageError("--ratios holds one ratio twice: name each once.")
    for ratio in ratios:
        if not 0 < ratio < 1:
            raise UsageError(
                f"--ratios has {ratio:g}: a ratio is the fraction of tokens merged away, between 0 and 1 (both "
                f"excluded), such as 0.5."
            )


def contenders(
    methods: Sequence[str],
    ratios: Sequence[float],
    subject: Subject,
    seen: Mapping[str, BlockPass],
    limit: bool,
    options: Mapping[str, Any] | None = None,
) -> list[Contender]:
    """Every method at every ratio, the plain model first: everything is measured against it.

    `options` go to every method but the tomesd package, which has its own.
    """
    listed: list[Contender] = [Unmerged()]
    if limit:
        listed.append(BlocksDeleted(seen))
    for method, ratio in _pairs([method for method in methods if method != NONE], ratios):
        if method == PACKAGE:
            assert ratio is not None
            listed.append(_package(ratio, subject, seen))
        else:
            listed.append(Merged(method, _config(method, ratio, options)))
    return listed


def _pairs(methods: Sequence[str], ratios: Sequence[float]) -> list[tuple[str, float | None]]:
    """Every method at every ratio; one without a ratio once."""
    alone: list[tuple[str, float | None]] = [
        (name, None) for name in methods if name in METHODS and not takes_ratio(name)
    ]
    named = {name for name, _ in alone}
    return [(name, ratio) for ratio in ratios for name in methods if name not in named] + alone


def _config(method: str, ratio: float | None, options: Mapping[str, Any] | None) -> MergeConfig:
    try:
        config = named_config(method, ratio, options)
    except ConfigError as error:
        raise UsageError(f"{method}{'' if ratio is None else f' at ratio {ratio:g}'}: {error}") from None
    if config.varies or config.merge_every > 1:
        raise UsageError(
            f"{method} merges more at some steps than at others, and bench times single steps: set ratio to one "
            f"number, or time whole images with `tokenmerge compare`."
        )
    return config


def _package(ratio: float, subject: Subject, seen: Mapping[str, BlockPass]) -> TomesdPackage:
    reason = why_not(subject.model)
    if reason is not None:
        raise UsageError(f"{PACKAGE} cannot be measured here: {reason}. Leave it out of --methods.")
    height, width = next(iter(subject.inputs.values())).shape[-2:]
    downsample = reaching_downsample(height * width, (block.tokens for block in seen.values()))
    return TomesdPackage(ratio, downsample)
