"""explain(): what is merged where, what it should save, and after a run what was measured.

Savings are counted, not estimated: the same architecture runs without weights on the meta device, once as it is and
once merged, and every multiply-add of every layer is added up (ToMA, Appendix D, for the model at hand).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_pixels, check_whole
from tokenmerge.engine.arguments import as_one
from tokenmerge.engine.forecast import STORED
from tokenmerge.engine.schedule import Kind, Step, count_steps
from tokenmerge.engine.session import Session, session_of
from tokenmerge.engine.stack_run import StackRun
from tokenmerge.models import family_of
from tokenmerge.report.attention_kernels import attention_kernels
from tokenmerge.report.explanation import Explanation, Measured, ModelReport, MultiplyAdds, StackReport
from tokenmerge.report.worthwhile import Timing
from tokenmerge.runtime.multiply_adds import count_multiply_adds

UNKNOWN_STEPS = (
    "steps: the number of steps of an image is not known, so fewer are skipped than counted here. Give steps= to "
    "tokenmerge.apply or tokenmerge.merged."
)


def explain(
    sessions: list[Session],
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    steps: int | None = None,
    timings: tuple[Timing, ...] = (),
) -> Explanation:
    """Explain what is attached to the given models, for an image of (height, width) pixels."""
    for name, value in (("steps", steps), ("batch", batch)):
        if value is not None:
            check_whole(name, value, least=1)
    if size is not None:
        check_pixels(size)
    reports = [_explain_model(session, size, batch, steps) for session in sessions]
    # Before the first call nothing is measured that could contradict what is counted.
    ran = [session.steps for session, report in zip(sessions, reports, strict=True) if report.measured is not None]
    unknown = any(each.skipping is not None and not each.skipping.counts_steps for each in ran)
    return Explanation(sessions[0].config, reports, timings, (UNKNOWN_STEPS,) if unknown else ())


def _explain_model(session: Session, size: tuple[int, int] | None, batch: int | None, steps: int | None) -> ModelReport:
    twin = _weightless_twin(session.model)
    session.family.prepare_meta(twin)
    args: Any = ()
    if session.last_call is not None and size is None and batch is None:
        args, kwargs = session.last_call
    else:
        kwargs = session.family.example_inputs(twin, size or native_size(session.model), batch or 1)
    kwargs = session.family.countable(kwargs)
    unmerged = _count(twin, args, kwargs)
    twin_session = Session(
        twin, session.family, session.config, session.keep, session, reference_ratio=session.reference_ratio
    )
    twin_session.attach()
    stacks: list[StackReport] = []
    moments: list[tuple[float, MultiplyAdds]] = []
    cached = 0
    for begin, end in _moments(session.config):
        twin_session.steps.forced_progress = begin
        twin_session.reset()
        work, kept = _count_moment(twin_session, steps, unmerged, args, kwargs)
        moments.append((end - begin, work))
        cached = max(cached, kept)
        during = "" if (begin, end) == (0, 1) else f"{begin:.0%} to {end:.0%}"
        stacks += [_stack_report(stack, session.config, during) for stack in twin_session.stacks]
    return ModelReport(
        model=type(session.model).__name__,
        stacks=stacks,
        multiply_adds=_over_moments(moments),
        attention=attention_kernels(session, twin_session),
        measured=_measured(session),
        cached_bytes=cached + (_forecast_bytes(args, kwargs) if session.steps.skipping is not None else 0),
        steps=steps,
    )


def _forecast_bytes(args: Any, kwargs: Any) -> int:
    """Of the outputs that skipped steps are forecast from: each as large as the noisy input."""
    first = as_one(next(iter((*args, *kwargs.values()))))
    return STORED * int(first.nbytes)


def _moments(config: MergeConfig) -> list[tuple[float, float]]:
    """Stretches of a generation, from 0 to 1, in which no ratio changes."""
    if not config.varies:
        return [(0, 1)]
    begins = config.moments()
    configs = [config.at(progress) for progress in begins]
    begins = [here for index, here in enumerate(begins) if index == 0 or configs[index] != configs[index - 1]]
    return list(zip(begins, [*begins[1:], 1], strict=True))


def _count_moment(
    session: Session, steps: int | None, unmerged: int, args: Any, kwargs: Any
) -> tuple[MultiplyAdds, int]:
    """What each kind of call costs while the ratio is what it is, and on average; and how many bytes are kept."""

    def count(kind: Kind, select: bool = False, weights: bool = False) -> int:
        # Not the first step, at which what was recorded is forgotten.
        session.steps.forced = Step(1, kind, select, weights)
        return _count(session.model, args, kwargs)

    full = count(Kind.CALIBRATE, select=True, weights=True) if session.steps.policy.full_every else unmerged
    kept = session.state.cached_bytes  # a new plan may let go of what is on the host
    select = count(Kind.MERGED, select=True, weights=True)
    weights = count(Kind.MERGED, weights=True)
    steady = count(Kind.MERGED)
    counted = count_steps(session.steps.policy, steps)
    total = counted.select * select + counted.weights * weights + counted.steady * steady + counted.full * full
    return MultiplyAdds(unmerged, steady, weights, select, full, total / counted.total), kept


def _over_moments(moments: list[tuple[float, MultiplyAdds]]) -> MultiplyAdds:
    def mean(name: str) -> float:
        return sum(share * float(getattr(work, name)) for share, work in moments)

    if len(moments) == 1:
        return moments[0][1]
    steady, weights, select, full = (round(mean(name)) for name in ("steady", "weights", "select", "full"))
    return MultiplyAdds(moments[0][1].unmerged, steady, weights, select, full, mean("average"))


def _measured(session: Session) -> Measured | None:
    if not session.calls:
        return None
    return Measured(
        session.calls,
        session.full_calls,
        session.selections,
        session.weightings,
        dict(session.tokens_seen),
        session.state.cached_bytes + (0 if session.steps.skipping is None else session.steps.skipping.cached_bytes),
        session.skipped_calls,
    )


def _weightless_twin(model: nn.Module) -> nn.Module:
    """The same architecture on the meta device: no memory, no merging, no time."""
    kind: Any = type(model)
    if hasattr(kind, "from_config"):
        with torch.device("meta"):
            twin: nn.Module = kind.from_config(model.config)
        # Weights made from lists of numbers are on the CPU even so (those of Stable Video Diffusion that mix frames).
        # Past diffusers' own `to`, which warns about modules that nobody will compute with here.
        return nn.Module.to(twin, device="meta", dtype=_computed_in(model)).eval()
    # Weights are taken for copied, so that no second set of them is ever in memory.
    weightless: Any = {id(tensor): _empty(tensor) for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, weightless).eval()
    copied = session_of(twin)
    if copied is not None:
        copied.detach()
    return twin


def _empty(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def _computed_in(model: nn.Module) -> torch.dtype:
    """The type a model computes in: quantised weights and those kept in eight bits are of another."""
    wide = (weight.dtype for weight in model.parameters() if weight.is_floating_point() and weight.itemsize > 1)
    return next(wide, torch.float32)


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


def _stack_report(stack: StackRun, config: MergeConfig, during: str) -> StackReport:
    program = stack.program
    layout = program.layout
    tokens = (math.prod(program.grid) if program.grid else 0) if layout is None else layout.tokens
    return StackReport(
        name=stack.stack.name,
        blocks=list(program.blocks),
        skipped=len(stack.stack.blocks) - len(program.blocks),
        parts=[kind for kind in config.parts if kind in program.kinds],
        grid=program.grid,
        tokens=tokens,
        kept=tokens if layout is None else layout.kept,
        kept_keys=tokens if layout is None else layout.kept_keys,
        note=program.reason or "; ".join(program.notes),
        during=during,
    )
