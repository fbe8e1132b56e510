"""What explain() gives: the report and how it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.ratio import ratio_text
from tokenmerge.engine.skipped_steps import FEWEST_STEPS
from tokenmerge.report.terminal import fitted
from tokenmerge.report.worthwhile import Timing, table_of


@dataclass(frozen=True)
class StackReport:
    """What becomes of one stack of blocks; of those with one ratio, where they differ, and of a part of the steps."""

    name: str
    blocks: list[str]  # those that merge
    skipped: int
    parts: list[str]
    grid: tuple[int, ...]
    tokens: int
    kept: int
    kept_keys: int
    note: str  # why nothing is merged, or what could not be done
    during: str = ""  # which part of the generation, where the ratio changes over it


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of one call of the model; where the ratio changes over the steps, on average over them."""

    unmerged: int
    steady: int  # a call that reuses its plan
    weights: int  # one that makes new weights
    select: int  # one that makes new destinations and weights
    full: int  # one at a full step, with the merged run that calibrates it
    average: float  # over the schedule, with full steps

    @property
    def saving(self) -> float:
        """Fraction of all multiply-adds saved, on average over the schedule."""
        return 1 - self.average / self.unmerged


@dataclass(frozen=True)
class Measured:
    """What was counted while the model ran."""

    calls: int
    full: int  # of them, those at full steps
    selections: int
    weightings: int
    tokens_seen: dict[str, int]  # block.part -> tokens it ran on in the last call, or queries that it was asked
    cached_bytes: int  # of what is kept from earlier steps
    skipped: int = 0  # calls that were answered with a forecast

    def __str__(self) -> str:
        shown = [f"{self.calls} call{'' if self.calls == 1 else 's'}"]
        if self.full:
            shown.append(f"{self.full} of them at full steps")
        if self.skipped:
            shown.append(f"{self.skipped} of them skipped")
        if self.weightings:
            shown.append(f"destinations selected {self.selections} times, weights computed {self.weightings} times")
        if self.cached_bytes:
            shown.append(f"{self.cached_bytes / 1e6:,.1f} MB cached from earlier steps")
        return ", ".join(shown)


@dataclass(frozen=True)
class ModelReport:
    """One model of the pipeline."""

    model: str
    stacks: list[StackReport]
    multiply_adds: MultiplyAdds
    attention: str  # which kernels attention can take with weighted keys; "" if no key has a weight
    measured: Measured | None
    cached_bytes: int = 0  # that a generation keeps from step to step, predicted
    steps: int | None = None  # of the image that multiply-adds are averaged over; None: many


@dataclass(frozen=True)
class Explanation:
    """Print it, or take `to_dict()`."""

    config: MergeConfig
    models: list[ModelReport]
    timings: tuple[Timing, ...] = ()  # of one block each way, where the config rests on them
    hints: tuple[str, ...] = ()  # what the user could do better

    def to_dict(self) -> dict[str, Any]:
        models = [asdict(model) for model in self.models]
        for plain, model in zip(models, self.models, strict=True):
            plain["multiply_adds"]["saving"] = model.multiply_adds.saving
        explained = {"config": _printable(self.config), "models": models}
        return explained | ({"timings": [timing.to_dict() for timing in self.timings]} if self.timings else {})

    def __str__(self) -> str:
        texts = [_text(self.config, model) for model in self.models]
        if self.timings:
            texts.append(f"chosen by the time of one block each way on this machine:\n\n{table_of(self.timings)}")
        return "\n\n".join([*texts, *self.hints])


def _merged_table(stacks: list[StackReport]) -> str:
    """One row for each stack in which something is merged."""
    rows = [
        (
            stack.name,
            stack.during,
            f"{len(stack.blocks)} of {len(stack.blocks) + stack.skipped}",
            " ".join(stack.parts),
            " x ".join(map(str, stack.grid)),
            f"{stack.tokens:,} -> {stack.kept:,}" if stack.kept != stack.tokens else f"{stack.tokens:,}",
            f"{stack.kept_keys:,}" if stack.kept_keys != stack.tokens else "all",
            stack.note,
        )
        for stack in stacks
    ]
    headers = ["stack", "progress", "blocks", "parts", "grid", "tokens -> kept", "keys kept", "note"]
    # Columns that have nothing to say are left out.
    used = [column for column in range(len(headers)) if any(row[column] for row in rows)]
    return fitted([[row[column] for column in used] for row in rows], [headers[column] for column in used])


def _left_alone(stacks: list[StackReport]) -> Iterator[str]:
    """One line for each reason why nothing is merged; a UNet has many stacks of one size with the same one."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for stack in stacks:
        grid = " x ".join(map(str, stack.grid))
        reasons.setdefault((grid, stack.during, stack.note), []).append(stack.name)
    for (grid, during, reason), names in reasons.items():
        what = names[0] if len(names) == 1 else f"{len(names)} stacks"
        at = (f" of {grid}" if grid else "") + (f" ({during})" if during else "")
        yield f"left alone: {what}{at}: {reason}"


def _text(config: MergeConfig, model: ModelReport) -> str:
    merged = [stack for stack in model.stacks if stack.blocks]
    left_alone = list(_left_alone([stack for stack in model.stacks if not stack.blocks]))
    # Nothing is merged in a small image of which steps are skipped.
    blocks = [_merged_table(merged)] if merged else []
    blocks += ["\n".join(left_alone)] if left_alone else []
    work = model.multiply_adds
    by_noise = config.correction is not None and config.correction.within is not None
    many = "over many steps" if by_noise else "on average"
    steps = many if model.steps is None else f"over {_counted(model.steps)}"
    lines = [
        f"{type(config).__name__} on {model.model}: {_how(config)}",
        *(line for block in blocks for line in ("", block)),
        "",
        f"schedule: {_schedule(config)}",
        f"multiply-adds of one call: {_giga(work.unmerged)} unmerged, "
        f"{_giga(work.average)}{' merged' if config.merges_tokens else ''} {steps} ({_kinds_of_steps(config, work)}): "
        f"{work.saving:.1%} saved, at best {work.unmerged / work.average:.2f}x",
    ]
    lines.append(f"attention: {model.attention or 'no mask is added, so every kernel stays usable'}")
    if model.cached_bytes:
        where = "in the host's memory " if config.correction is not None and config.correction.offload else ""
        kept = f"{model.cached_bytes / 1e6:,.1f} MB kept {where}from step to step"
        lines.append(f"memory: {kept}, for each guidance branch")
    if model.measured is not None:
        lines.append(f"measured: {model.measured}")
    return "\n".join(lines)


def _how(config: MergeConfig) -> str:
    """How tokens are merged, if any are."""
    if not config.merges_tokens:
        return "no token is merged"
    return f"ratio {ratio_text(config.ratio)}, merged per {config.scope}, one plan per {config.share}"


def _kinds_of_steps(config: MergeConfig, work: MultiplyAdds) -> str:
    """The multiply-adds of a call at each kind of step."""
    if not config.merges_tokens:
        return f"{_giga(work.steady)} at a computed step"
    full = f", {_giga(work.full)} at a full step" if work.full != work.unmerged else ""
    return f"{_giga(work.steady)} steady, {_giga(work.select)} when selecting{full}"


def _schedule(config: MergeConfig) -> str:
    skips = f"one step in {config.step_speedup:g} computed, the others forecast"
    if not config.merges_tokens:
        return f"{skips}; images of fewer than {FEWEST_STEPS} steps skip none"
    return (f"{skips}; " if config.step_speedup > 1 else "") + _computed_steps(config)


def _computed_steps(config: MergeConfig) -> str:
    select, weights = config.refresh_every
    correction = config.correction
    if correction is not None:
        within = "" if correction.within is None else f" or {correction.within:.0%} of the noise, whichever is sooner"
        return (
            f"the first step full, then one every {_steps(correction.every)}{within}; the others merged and corrected"
        )
    shown = [f"new destinations every {_steps(select)}", f"new weights every {_steps(weights)}"]
    if config.merge_every > 1:
        shown.append(f"merged only every {_steps(config.merge_every)}")
    return ", ".join(shown)


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _giga(count: float) -> str:
    return f"{count / 1e9:,.1f} G" if count >= 1e8 else f"{count / 1e6:,.1f} M"


def _printable(config: MergeConfig) -> dict[str, Any]:
    """to_dict, with a user's own functions given by name."""
    values = {
        name: getattr(value, "__name__", value) if callable(value) else value for name, value in vars(config).items()
    }
    correction = None if config.correction is None else asdict(config.correction)
    return values | {"correction": correction, "method": type(config).__name__}
