"""explain(): what is merged where, what it should save, and after a run what was measured.

Savings are counted, not estimated: the same architecture runs without weights on the meta device, once as it is and
once merged, and every multiply-add of every layer is added up (ToMA, Appendix D, for the model at hand).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tokenmerge.autotune.worthwhile import Timing
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_whole
from tokenmerge.engine.plan import MergePlan
from tokenmerge.engine.root import RootSite, root_site_of
from tokenmerge.engine.stack_site import StackSite
from tokenmerge.models import family_of
from tokenmerge.report.explanation import Explanation, Measured, ModelReport, MultiplyAdds, StackReport
from tokenmerge.runtime.multiply_adds import count_multiply_adds

# More steps than any generation has.
NEVER = 1_000_000


def explain(
    roots: list[RootSite],
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    steps: int | None = None,
    timings: tuple[Timing, ...] = (),
) -> Explanation:
    """Explain what is attached to the given models, for an image of (height, width) pixels."""
    if steps is not None:
        check_whole("steps", steps, least=1)
    return Explanation(roots[0].config, [_explain_model(root, size, batch, steps) for root in roots], timings)


def _explain_model(root: RootSite, size: tuple[int, int] | None, batch: int | None, steps: int | None) -> ModelReport:
    twin = _weightless_twin(root.model)
    args: Any = ()
    if root.last_call is not None and size is None and batch is None:
        args, kwargs = root.last_call
    else:
        kwargs = root.family.example_inputs(twin, size or native_size(root.model), batch or 1)
    kwargs = _without_adapters(kwargs)
    unmerged = _count(twin, args, kwargs)
    # Without weights there are no timesteps either, so the calls are its steps, of each kind one (see _count_moment).
    every_kind = root.config.with_detail(4 if root.config.whole_every else 0, merge_every=1)
    twin_root = RootSite(twin, root.family, every_kind, root.keep)
    # What is due is said here, call by call, and by no schedule.
    twin_root.plan = MergePlan(NEVER, NEVER, whole_every=every_kind.whole_every, learns=every_kind.learns)
    twin_root.like = root
    twin_root.attach()
    stacks: list[StackReport] = []
    moments: list[tuple[float, MultiplyAdds]] = []
    for begin, end in _moments(root):
        twin_root.fixed_progress = begin
        twin_root.plan.forget()
        moments.append((end - begin, _count_moment(twin_root, root.config, steps, unmerged, args, kwargs)))
        during = "" if (begin, end) == (0, 1) else f"{begin:.0%} to {end:.0%}"
        stacks += [_stack_report(stack, during) for stack in twin_root.stacks]
    return ModelReport(
        model=type(root.model).__name__,
        stacks=stacks,
        multiply_adds=_over_moments(moments),
        attention=_attention(twin_root),
        measured=_measured(root),
        steps=steps,
    )


def _moments(root: RootSite) -> list[tuple[float, float]]:
    """Stretches of a generation, from 0 to 1, in which no ratio changes."""
    if not root.config.varies:
        return [(0, 1)]
    begins = root.config.moments()
    configs = [root.config.at(progress) for progress in begins]
    begins = [here for index, here in enumerate(begins) if index == 0 or configs[index] != configs[index - 1]]
    return list(zip(begins, [*begins[1:], 1], strict=True))


def _count_moment(
    twin_root: RootSite, config: MergeConfig, steps: int | None, unmerged: int, args: Any, kwargs: Any
) -> MultiplyAdds:
    """What calls cost while the ratio is what it is, and what they cost on average."""
    twin = twin_root.model
    whole = unmerged
    if config.whole_every:
        # The second call runs whole; merged ones after it have its detail to add, which the first has not.
        _, whole = (_count(twin, args, kwargs) for _ in range(2))
        twin_root.plan.make_due(select=True, weights=True)
    select = _count(twin, args, kwargs)
    twin_root.plan.make_due(select=False, weights=True)
    weights = _count(twin, args, kwargs)
    steady = _count(twin, args, kwargs)
    select_every, weights_every = config.refresh_every
    merged = select_every * config.share_merged(steps)  # steps that merge, of `select_every`
    # Whole steps that run merged as well make plans there, and what that takes is in what they take.
    selects = 0.0 if config.learns else min(1.0, merged)
    reweighs = 0.0 if config.learns else min(select_every // weights_every - 1, merged - selects)
    total = selects * select + reweighs * weights + (merged - selects - reweighs) * steady
    average = (total + (select_every - merged) * whole) / select_every
    return MultiplyAdds(unmerged, steady, weights, select, whole, average)


def _over_moments(moments: list[tuple[float, MultiplyAdds]]) -> MultiplyAdds:
    def mean(name: str) -> float:
        return sum(share * float(getattr(work, name)) for share, work in moments)

    if len(moments) == 1:
        return moments[0][1]
    steady, weights, select, whole = (round(mean(name)) for name in ("steady", "weights", "select", "whole"))
    return MultiplyAdds(moments[0][1].unmerged, steady, weights, select, whole, mean("average"))


def _measured(root: RootSite) -> Measured | None:
    if not root.calls:
        return None
    seen = {
        f"{block.block.name}.{part.part.module}": part.seen
        for stack in root.stacks
        for block in stack.blocks
        for part in block.parts
        if part.seen is not None
    }
    return Measured(root.calls, root.whole_calls, root.selections, root.weightings, seen, root.plan.held)


def _attention(root: RootSite) -> str:
    weighed = any(
        part.active and "self" in part.part.kinds and part.attention.weighs
        for stack in root.stacks
        for block in stack.blocks
        for part in block.parts
    )
    if not weighed:
        return ""
    return (
        "self-attention gets a mask of a row (proportional): on a GPU PyTorch then takes its memory-efficient kernel, "
        "for flash attention takes no mask"
    )


def _weightless_twin(model: nn.Module) -> nn.Module:
    """The same architecture on the meta device: no memory, no merging, no time."""
    kind: Any = type(model)
    if hasattr(kind, "from_config"):
        with torch.device("meta"):
            twin: nn.Module = kind.from_config(model.config)
        # Past diffusers' own `to`, which warns about modules that nobody will compute with here.
        return nn.Module.to(twin, _computed_in(model)).eval()
    twin = copy.deepcopy(model).to("meta").eval()
    copied = root_site_of(twin)
    if copied is not None:
        copied.detach()
    return twin


def _computed_in(model: nn.Module) -> torch.dtype:
    """The type a model computes in: quantised weights and those kept in eight bits are of another."""
    wide = (weight.dtype for weight in model.parameters() if weight.is_floating_point() and weight.itemsize > 1)
    return next(wide, torch.float32)


def _without_adapters(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call that the bare architecture can take: it has nothing that could read an IP-Adapter's pictures."""
    extras = kwargs.get("joint_attention_kwargs")
    if not extras:
        return kwargs
    readable = {name: value for name, value in extras.items() if name != "ip_adapter_image_embeds"}
    return {**kwargs, "joint_attention_kwargs": readable}


def native_size(model: nn.Module) -> tuple[int, int]:
    """Pixels of the image a model was made for; 1024 where its config does not say."""
    sample: Any = getattr(getattr(model, "config", None), "sample_size", None)
    if sample is None:
        return 1024, 1024
    height, width = (sample, sample) if isinstance(sample, int) else sample
    pixels = family_of(model).pixels
    return height * pixels, width * pixels


def _count(model: nn.Module, args: Any, kwargs: Any) -> int:
    return count_multiply_adds(lambda: model(*args, **kwargs))


def _stack_report(stack: StackSite, during: str) -> StackReport:
    layout = stack.layout
    blocks = [] if layout is None else stack.blocks
    active = [part.part.kinds for block in blocks for part in block.parts if part.active]
    parts = [kind for kind in stack.root.config.parts if any(kind in kinds for kinds in active)]
    kept, kept_keys = (stack.tokens, stack.tokens) if layout is None else (layout.kept, layout.kept_keys)
    merged = (part for block in blocks for part in block.parts if part.active)
    thinned = (len(part.thinned) for part in merged if part.thinned is not None)
    return StackReport(
        name=stack.stack.name,
        blocks=[block.block.name for block in blocks],
        skipped=len(stack.stack.blocks) - len(blocks),
        parts=parts,
        grid=stack.grid or (),
        tokens=stack.tokens,
        kept=kept,
        kept_keys=min(thinned, default=kept_keys),
        note=_note(stack),
        during=during,
    )


def _note(stack: StackSite) -> str:
    if not stack.blocks:
        return "all blocks skipped"
    if stack.layout is None:
        return stack.reason
    notes = []
    if stack.apart and stack.root.config.scope == "stack":
        notes.append("merged per block: something is added between blocks")
    unweighed = stack.root.config.proportional and any(
        "self" in part.part.kinds and not stack.root.weighs(part.part) for block in stack.blocks for part in block.parts
    )
    if unweighed:
        notes.append("keys are not weighed: this attention takes no mask")
    if any(block.place.averages for block in stack.blocks):
        notes.append("the mean of each tile is kept")
    return "; ".join(notes)
