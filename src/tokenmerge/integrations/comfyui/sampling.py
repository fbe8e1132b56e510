"""One sampling run in ComfyUI: merging is attached when the sampler begins and detached when it ends, however it ends.

A clone of a model shares its modules with the model it came from, so nothing may stay on them between two runs. The
sampler's own wrapper is the place to attach: by then ComfyUI has loaded the model, and other nodes have replaced in it
what they replace. Each call carries our wrapper in `transformer_options`, and is merged if that wrapper's run is on. A
call without it runs on all tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.clock import Clock
from tokenmerge.engine.session import Session, session_of
from tokenmerge.engine.skipping import TimelineOf
from tokenmerge.errors import AlreadyAppliedError, ConfigError
from tokenmerge.integrations.comfyui.sampler_calls import SamplerCalls, calls_of, clean_weights
from tokenmerge.models import family_of
from tokenmerge.ops.compiling import outside_compile

# Of our wrapper. Nothing else of ours is in transformer_options: ComfyUI's TorchCompileModel drops all guards on it. A
# graph that was compiled with one more entry would also run, and fail, without it.
KEY = "tokenmerge"
OVERRIDE = "optimized_attention_override"  # ComfyUI's name for what is called in place of its attention


class Merging:
    """What one node asks for, and what its newest run did.

    Args:
        config: The method and its options.
        keep: (H, W) mask of what stays unmerged, or None.
        start, end: The part of the sampling in which tokens are merged, from 0 to 1.
    """

    def __init__(self, config: MergeConfig, keep: Tensor | None = None, start: float = 0.0, end: float = 1.0) -> None:
        if not 0 <= start < end <= 1:
            raise ConfigError(
                f"start_percent is {start} and end_percent is {end}: tokens are merged between them, so start_percent "
                f"must be the smaller one, and both lie between 0 and 1."
            )
        self.config = config
        self.keep = keep
        self.start, self.end = start, end
        self.run: Run | None = None  # while it is sampled
        self.last: Session | None = None  # of the newest run
        self.steps = self.steps_outside = 0  # of that run, within and outside the part that is merged

    def on(self, model: Any) -> Any:
        """A clone of a ModelPatcher that merges so. Of several nodes in a row the last one counts."""
        from comfy.patcher_extension import WrappersMP

        self._session(model.model.diffusion_model)  # wrong settings are refused here, on the node
        clone = model.clone()
        clone.remove_wrappers_with_key(WrappersMP.SAMPLER_SAMPLE, KEY)
        clone.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, KEY, self.sample)
        return clone

    def sample(self, executor: Any, guider: Any, sigmas: Tensor, extra_args: Any, *args: Any, **kwargs: Any) -> Any:
        """ComfyUI's SAMPLER_SAMPLE wrapper."""
        base = guider.model_patcher.model
        options = extra_args["model_options"].setdefault("transformer_options", {})
        calls = None
        if self.config.step_speedup > 1:
            _refuse_caches(options, self.config.step_speedup)
            calls = calls_of(executor.class_obj, guider, base.model_sampling, sigmas)
        run = Run.of(self, base.model_sampling, sigmas, calls)
        session = self.last = self._session(base.diffusion_model, run.timeline)
        sigmas_of_calls = sigmas[:-1].tolist() if calls is None else calls.sigmas
        self.steps = sum(map(run.covers, sigmas_of_calls))
        self.steps_outside = len(sigmas_of_calls) - self.steps
        # Where steps are skipped and no token is merged, attention stays whichever ComfyUI was started with.
        if self.config.merges_tokens and _reaches_inside(session):
            options[OVERRIDE] = partial(attend_by_pytorch, before=options.get(OVERRIDE))
        _guard_hooks()
        with self._running(run, session):
            return executor(guider, sigmas, extra_args, *args, **kwargs)

    @contextmanager
    def _running(self, run: Run, session: Session) -> Iterator[None]:
        with _attached(session):
            self.run = run
            try:
                yield
            finally:
                self.run = None

    def _session(self, model: nn.Module, timeline_of: TimelineOf | None = None) -> Session:
        return Session(model, family_of(model), self.config, self.keep, timeline_of=timeline_of)


@dataclass(frozen=True)
class Run:
    """What a call needs to know about the run it belongs to."""

    start: float  # sigmas between which tokens are merged
    end: float
    by_sigma: bool  # the model takes log(sigma) for its time, which is no measure of the noise that is left
    calls: SamplerCalls | None  # if steps are skipped
    model_sampling: Any

    @classmethod
    def of(cls, merging: Merging, model_sampling: Any, sigmas: Tensor, calls: SamplerCalls | None = None) -> Run:
        start = math.inf if merging.start <= 0 else float(model_sampling.percent_to_sigma(merging.start))
        end = -math.inf if merging.end >= 1 else float(model_sampling.percent_to_sigma(merging.end))
        times = model_sampling.timestep(sigmas[:-1])  # the last one is the finished image's
        return cls(start, end, bool((times < 0).any()), calls, model_sampling)

    @property
    def whole(self) -> bool:
        """Whether all of the sampling is merged, so that no sigma has to be read."""
        return self.start == math.inf and self.end == -math.inf

    def covers(self, sigma: float | None) -> bool:
        return sigma is None or self.end < sigma <= self.start

    def timeline(self, first_timestep: float | None) -> tuple[int, tuple[float, ...] | None] | None:
        """What the sampler says about the steps that are merged."""
        return None if self.calls is None else self.calls.within(self.covers)

    def clean(self, sigmas: Any) -> tuple[float, float] | None:
        """How the clean image of a call is found, if the sampler adds noise."""
        if self.calls is None or not self.calls.adds_noise:
            return None
        sigma = Clock().read(sigmas).value
        return None if sigma is None else clean_weights(self.model_sampling, sigma)


def run_of(options: Mapping[str, Any]) -> Run | None:
    """The run that a call belongs to; None for one that is not to be merged."""
    from comfy.patcher_extension import WrappersMP, get_wrappers_with_key

    merging = _behind(get_wrappers_with_key(WrappersMP.SAMPLER_SAMPLE, KEY, options))
    return None if merging is None else merging.run


def merging_of(model: Any) -> Merging | None:
    """What the last node before a ModelPatcher asks for."""
    from comfy.patcher_extension import WrappersMP

    return _behind(model.get_wrappers(WrappersMP.SAMPLER_SAMPLE, KEY))


def _behind(wrappers: Sequence[Any]) -> Merging | None:
    """The Merging whose method `sample` is the last of our wrappers."""
    merging = getattr(wrappers[-1], "__self__", None) if wrappers else None
    return merging if isinstance(merging, Merging) else None


# Run by compiled code, a graph's own call would pass what stands inside attention (engine/inner.py) a second time.
@outside_compile
def attend_by_pytorch(function: Any, *args: Any, before: Any = None, **kwargs: Any) -> Any:
    """PyTorch's own attention, whichever ComfyUI was started with; within what another node has put around it."""
    from comfy.ldm.modules.attention import attention_pytorch

    return attention_pytorch(*args, **kwargs) if before is None else before(attention_pytorch, *args, **kwargs)


def _reaches_inside(session: Session) -> bool:
    """Whether keys are weighted or left out inside attention, which is possible in PyTorch's own alone."""
    parts = [part for stack in session.stacks for block in stack.stack.blocks for part in block.parts]
    inside = any(part.mask == "inside" for part in parts)
    return inside or (session.config.separate_keys and not any(part.own_keys for part in parts))


def _refuse_caches(options: Mapping[str, Any], step_speedup: float) -> None:
    """EasyCache and LazyCache both leave their state under this name."""
    if "easycache" in options:
        raise ConfigError(
            f"EasyCache or LazyCache is on, and step_speedup={step_speedup:g} skips steps: both answer for the model "
            f"at some steps, and one does not see what the other did. Bypass one of the two nodes, or use Token Merge "
            f"(advanced) with a method that merges tokens and step_speedup 1."
        )


def _guard_hooks() -> None:
    """Have compiled code notice hooks, which come and go with every run: graphs made before are made once more.

    By default torch.compile looks for hooks when a graph is made and never again. A model that was sampled without
    Token Merge first would then run unmerged with it.
    """
    compiler = sys.modules.get("torch._dynamo")  # loaded by the first torch.compile
    if compiler is not None and compiler.config.skip_nnmodule_hook_guards:
        compiler.config.skip_nnmodule_hook_guards = False
        torch.compiler.reset()


@contextmanager
def _attached(session: Session) -> Iterator[None]:
    if session_of(session.model) is not None:
        raise AlreadyAppliedError(
            f"{type(session.model).__name__} is being sampled with merged tokens already, and a second sampler was "
            f"started inside the first: take Token Merge out of one of them."
        )
    session.attach()
    try:
        yield
    finally:
        session.detach()
