"""explain(): what is merged where, what it should save, and after a run what was measured.

Savings are counted, not estimated: the same architecture runs without weights on the meta device, once as it is and
once merged, and every multiply-add of every layer is added up (ToMA, Appendix D, for the model at hand).
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tokenmerge.config import MergeConfig
from tokenmerge.root import RootSite, root_site_of
from tokenmerge.sites import StackSite


@dataclass(frozen=True)
class StackReport:
    """What becomes of one stack of blocks."""

    name: str
    blocks: list[str]  # those that merge
    skipped: int
    parts: list[str]
    grid: tuple[int, ...]
    tokens: int
    kept: int
    kept_keys: int
    note: str  # why nothing is merged, or what could not be done


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of one call of the model."""

    unmerged: int
    steady: int  # a call that reuses its plan
    weights: int  # one that makes new weights
    select: int  # one that makes new destinations and weights
    average: float  # over the schedule

    @property
    def saving(self) -> float:
        """Fraction of all multiply-adds saved, on average over the schedule."""
        return 1 - self.average / self.unmerged


@dataclass(frozen=True)
class Measured:
    """What was counted while the model ran."""

    calls: int
    selections: int
    weightings: int
    tokens_seen: dict[str, int]  # block.part -> tokens it ran on in the last call


@dataclass(frozen=True)
class ModelReport:
    """One model of the pipeline."""

    model: str
    stacks: list[StackReport]
    multiply_adds: MultiplyAdds
    measured: Measured | None


@dataclass(frozen=True)
class Explanation:
    """Print it, or take `to_dict()`."""

    config: MergeConfig
    models: list[ModelReport]

    def to_dict(self) -> dict[str, Any]:
        models = [asdict(model) for model in self.models]
        for plain, model in zip(models, self.models, strict=True):
            plain["multiply_adds"]["saving"] = model.multiply_adds.saving
        return {"config": _printable(self.config), "models": models}

    def __str__(self) -> str:
        return "\n\n".join(_text(self.config, model) for model in self.models)


def explain(roots: list[RootSite], size: tuple[int, int] | None = None, batch: int | None = None) -> Explanation:
    """Explain what is attached to the given models, for an image of (height, width) pixels."""
    return Explanation(roots[0].config, [_explain_model(root, size, batch) for root in roots])


def _explain_model(root: RootSite, size: tuple[int, int] | None, batch: int | None) -> ModelReport:
    twin = _weightless_twin(root.model)
    args: Any = ()
    if root.last_call is not None and size is None and batch is None:
        args, kwargs = root.last_call
    else:
        kwargs = root.family.example_inputs(twin, size or _native_size(root.model), batch or 1)
    unmerged = _count(twin, args, kwargs)
    twin_root = RootSite(twin, root.family, root.config)
    twin_root.attach()
    select = _count(twin, args, kwargs)
    twin_root.plan.make_due(select=False, weights=True)
    weights = _count(twin, args, kwargs)
    steady = _count(twin, args, kwargs)
    select_every, weights_every = root.config.refresh_every
    reweighs = select_every // weights_every - 1
    average = (select + reweighs * weights + (select_every - 1 - reweighs) * steady) / select_every
    measured = None
    if root.calls:
        seen = {
            f"{block.block.name}.{part.part.module}": part.seen
            for stack in root.stacks
            for block in stack.blocks
            for part in block.parts
            if part.seen is not None
        }
        measured = Measured(root.calls, root.selections, root.weightings, seen)
    return ModelReport(
        model=type(root.model).__name__,
        stacks=[_stack_report(stack) for stack in twin_root.stacks],
        multiply_adds=MultiplyAdds(unmerged, steady, weights, select, average),
        measured=measured,
    )


def _weightless_twin(model: nn.Module) -> nn.Module:
    """The same architecture on the meta device: no memory, no merging, no time."""
    kind: Any = type(model)
    if hasattr(kind, "from_config"):
        with torch.device("meta"):
            twin: nn.Module = kind.from_config(model.config)
        # Past diffusers' own `to`, which warns about modules that nobody will compute with here.
        return nn.Module.to(twin, next(model.parameters()).dtype).eval()
    twin = copy.deepcopy(model).to("meta").eval()
    copied = root_site_of(twin)
    if copied is not None:
        copied.detach()
    return twin


def _native_size(model: nn.Module) -> tuple[int, int]:
    """Pixels of the image a model was made for; 1024 where its config does not say."""
    sample: Any = getattr(getattr(model, "config", None), "sample_size", None)
    if sample is None:
        return 1024, 1024
    height, width = (sample, sample) if isinstance(sample, int) else sample
    return height * 8, width * 8


@torch.no_grad()
def _count(model: nn.Module, args: Any, kwargs: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        model(*args, **kwargs)
    return int(counter.get_total_flops()) // 2


def _stack_report(stack: StackSite) -> StackReport:
    merges = stack.layout is not None and bool(stack.blocks)
    parts = dict.fromkeys(
        kind for block in stack.blocks for part in block.parts if part.active for kind in part.part.kinds
    )
    kept = (stack.layout.kept, stack.layout.kept_keys) if merges and stack.layout else (stack.tokens, stack.tokens)
    return StackReport(
        name=stack.stack.name,
        blocks=[block.block.name for block in stack.blocks] if merges else [],
        skipped=len(stack.stack.blocks) - (len(stack.blocks) if merges else 0),
        parts=list(parts),
        grid=stack.grid or (),
        tokens=stack.tokens,
        kept=kept[0],
        kept_keys=kept[1],
        note=_note(stack),
    )


def _note(stack: StackSite) -> str:
    if not stack.blocks:
        return "all blocks skipped"
    if stack.layout is None:
        return stack.reason
    if stack.apart and stack.root.config.scope == "stack":
        return "merged per block: something is added between blocks"
    unweighed = stack.root.config.proportional and any(
        "self" in part.part.kinds and not stack.root.weighs(part.part) for block in stack.blocks for part in block.parts
    )
    return "keys are not weighed: this attention takes no mask" if unweighed else ""


def _text(config: MergeConfig, model: ModelReport) -> str:
    rows = [
        (
            stack.name,
            f"{len(stack.blocks)} of {len(stack.blocks) + stack.skipped}",
            " ".join(stack.parts) if stack.blocks else "-",
            " x ".join(map(str, stack.grid)),
            f"{stack.tokens:,} -> {stack.kept:,}" if stack.kept != stack.tokens else f"{stack.tokens:,}",
            f"{stack.kept_keys:,}" if stack.kept_keys != stack.tokens else "all",
            stack.note,
        )
        for stack in model.stacks
    ]
    headers = ["stack", "blocks", "parts", "grid", "tokens -> kept", "keys kept", "note"]
    if not any(row[-1] for row in rows):
        rows, headers = [row[:-1] for row in rows], headers[:-1]  # type: ignore[misc]
    table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    select_every, weights_every = config.refresh_every
    work = model.multiply_adds
    lines = [
        f"{type(config).__name__} on {model.model}: ratio {config.ratio}, merged per {config.scope}, "
        f"one plan per {config.share}",
        "",
        table,
        "",
        f"schedule: new destinations every {_steps(select_every)}, new weights every {_steps(weights_every)}",
        f"multiply-adds of one call: {_giga(work.unmerged)} unmerged, {_giga(work.average)} merged on average "
        f"({_giga(work.steady)} steady, {_giga(work.select)} when selecting): {work.saving:.1%} saved, "
        f"at best {work.unmerged / work.average:.2f}x",
    ]
    if model.measured is not None:
        ran = model.measured
        lines.append(
            f"measured: {ran.calls} calls, destinations selected {ran.selections} times, weights made "
            f"{ran.weightings} times"
        )
    return "\n".join(lines)


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _giga(count: float) -> str:
    return f"{count / 1e9:,.1f} G" if count >= 1e8 else f"{count / 1e6:,.1f} M"


def _printable(config: MergeConfig) -> dict[str, Any]:
    """to_dict, with a user's own functions given by name."""
    return {
        name: getattr(value, "__name__", value) if callable(value) else value for name, value in vars(config).items()
    } | {"method": type(config).__name__}
