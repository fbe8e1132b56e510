"""Merging on one model: reads each call, advances the schedule, and hands every stack its Program.

Plain PyTorch forward hooks, all of them bound methods of plain objects, so deepcopy copies them with the model and
save_pretrained never sees them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.keep import protected_tokens
from tokenmerge.engine.arguments import as_one, refuse_empty, shapes_of_call
from tokenmerge.engine.compatibility import CACHE, can_run_twice, graph_limits, is_compiled, refuse_cache, suited
from tokenmerge.engine.describe import describe, refuse_misfit, warn_all_was_full, why_nothing
from tokenmerge.engine.hooks import PlacedHook
from tokenmerge.engine.program import AttentionRow, Facts, SpanRow
from tokenmerge.engine.residual import with_residuals
from tokenmerge.engine.resolve import layout_of
from tokenmerge.engine.schedule import Kind, Step
from tokenmerge.engine.skipping import TimelineOf
from tokenmerge.engine.stack_run import StackRun
from tokenmerge.engine.state import State
from tokenmerge.engine.steps import FULL_STEP, Steps
from tokenmerge.engine.surroundings import Surroundings, look_around
from tokenmerge.errors import MergeRuntimeError, NothingMergedError
from tokenmerge.models.arguments import Args, Kwargs, argument_names, given_argument, named_arguments
from tokenmerge.models.base import Call, Family, Stack, chosen_parts
from tokenmerge.ops.compiling import outside_compile


class Session:
    """Everything attached to one model."""

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        config: MergeConfig,
        keep: Tensor | None = None,
        inspected: Session | None = None,
        timeline_of: TimelineOf | None = None,
        reference_ratio: float = 0.0,
    ) -> None:
        """keep: (H, W), 1 where tokens stay. inspected: the session whose caches and attention count, if this one is on
        a weightless twin of its model. timeline_of: what the sampler says about an image's steps.
        reference_ratio: the fraction of reference tokens merged away."""
        stacks = family.stacks(model)
        self.model = model
        self.family = family
        self.config = self._suited = suited(config, stacks)  # with a scope that suits the model
        self.keep, self.reference_ratio = keep, reference_ratio
        self.state = State()
        self.steps = Steps(model, family, self.config, self.state, timeline_of)
        self.step = FULL_STEP  # of the call that runs
        self.attached = self.compiled = self.calibrating = False
        self.facts = Facts(self.config)
        self.batch = 0
        self.sampling_seed: Tensor | None = None  # () the step, if tokens are sampled: a number would compile again
        self.last_call: tuple[Args, Kwargs] | None = None
        self.calls = self.selections = self.weightings = 0
        self.merged_calls = self.full_calls = self.skipped_calls = 0
        self.noted: dict[SpanRow | AttentionRow, int] = {}  # tokens that each row ran on in its last call
        self._chooses_scope = config.scope is None
        self._inspected = self if inspected is None else inspected
        self._surroundings: Surroundings = frozenset(), frozenset(), False
        self._names = argument_names(model)
        self._hooks: list[PlacedHook] = []
        refuse_misfit(model, self.config, family, stacks, keep, reference_ratio)
        # Every one of them, before the first step: a ratio of a later one may be wrong.
        tried = [self.config.at(progress) for progress in self.config.moments()]
        if not any(tried):
            raise NothingMergedError(f"nothing would be merged in {type(model).__name__}: ratio is 0 at every step.")
        self.stacks = self._runs_of(stacks)
        self._modules = (model, *(module for stack in self.stacks for module in stack.modules()))
        self._knows_residuals = family.known_residuals or not config.merges_queries or inspected is not None

    def _runs_of(self, stacks: list[Stack]) -> list[StackRun]:
        return [StackRun(described, self) for described in describe(self.model, self.family, self.config, stacks)]

    # -- attaching ---------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        self.attached = True
        self._hooks = [PlacedHook(self.model, "", "before", self.enter)]
        for stack in self.stacks:
            stack.attach()
        self._hooks.append(PlacedHook(self.model, "", "after", self.leave, with_kwargs=True))
        if self.steps.skipping is not None:
            self.steps.skipping.attach()

    def detach(self) -> None:
        self.attached = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for stack in self.stacks:
            stack.detach()
        if self.steps.skipping is not None:
            self.steps.skipping.detach()
        self.state.forget(release=True)
        graph_limits.release(self)
        told = self.steps.schedule.timeline is not None and not self.config.merges_tokens  # when the image began
        if self.full_calls and not (self.merged_calls or self.skipped_calls or told):
            warn_all_was_full(self.config)

    def reset(self) -> None:
        """Forget all plans, as if the next call were the first."""
        self.steps.reset()

    # -- a call ------------------------------------------------------------------------------------------------------

    @outside_compile
    def enter(self, model: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if not self.attached or self.calibrating:
            return
        given = as_one(given_argument(self._names, args, kwargs, self._names[0]))
        refuse_empty(given)
        if not self._knows_residuals:
            self._measure_residuals(args, kwargs)
        for stack in self.stacks:
            stack.hooks.follow_changes()
        self.compiled = is_compiled(self._modules)
        if self.compiled:
            graph_limits.raise_for(self)
        call = self.family.read_call((), named_arguments(self.model, args, kwargs))
        self.batch = given.shape[0]
        self.calls += 1
        self.step = step = self.steps.advance(call, args, kwargs, given)
        if step.kind is Kind.SKIPPED:
            return
        self._read_facts(call, step)
        if self.config.resamples:
            self.sampling_seed = torch.full((), step.number, device=given.device)
        if step.number == 0 or self.last_call is None:
            family = self.family
            self.last_call = shapes_of_call(self._names, family.positions, family.timestep, args, kwargs)
        for stack in self.stacks:
            stack.begin_call(self._kind_of(stack, step, call))
        for stack in self._stacks_of(model):
            stack.read_owner(args, kwargs)

    def _measure_residuals(self, args: Args, kwargs: Kwargs) -> None:
        """Find out what the family leaves open, while nothing of ours stands inside the model."""
        self._knows_residuals = True
        for stack in self.stacks:
            stack.detach()
        self.stacks = self._runs_of(with_residuals(self.model, [run.stack for run in self.stacks], args, kwargs))
        for stack in self.stacks:
            stack.attach()

    def _kind_of(self, stack: StackRun, step: Step, call: Call) -> Kind:
        """The kind of this step for one stack: what cannot run twice cannot be calibrated."""
        if step.kind is not Kind.CALIBRATE:
            return step.kind
        twice = call.repeatable and can_run_twice(stack.stack.owner, (Session, StackRun))
        return Kind.CALIBRATE if twice else Kind.FULL

    def _stacks_of(self, owner: nn.Module) -> list[StackRun]:
        return [stack for stack in self.stacks if stack.stack.owner is owner]

    @torch.no_grad()
    def calibrate(self, owner: nn.Module, args: Args, kwargs: Kwargs, stacks: list[StackRun]) -> None:
        """After a full run of an owner, run it merged, so that every span records its merging error.

        What it returns is the same as before, because every span then returns what it gave on all tokens.
        """
        self._set_calibrating(True, stacks, Kind.MERGED)
        try:
            owner(*args, **kwargs)
        finally:
            self._set_calibrating(False, stacks, Kind.CALIBRATE)

    @outside_compile
    def _set_calibrating(self, calibrating: bool, stacks: list[StackRun], kind: Kind) -> None:
        self.calibrating = calibrating
        self.state.set_calibrating(calibrating)
        for stack in stacks:
            stack.begin_call(kind)

    @outside_compile
    def leave(self, model: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> Any:
        if not self.attached or self.calibrating:
            return None
        if self.step.kind is Kind.SKIPPED:
            self.skipped_calls += 1
            return None
        recorded = [stack for stack in self._stacks_of(model) if stack.kind is Kind.CALIBRATE]
        if recorded:
            self.calibrate(model, args, kwargs, recorded)
        for stack in self.stacks:
            stack.forget_call()
        mergeable = any(stack.program.merges for stack in self.stacks)
        merges = mergeable and self.step.kind is Kind.MERGED
        skipping = self.steps.skipping
        if not mergeable and skipping is None and not (self.config.varies and self._merges_later()):
            reasons = why_nothing(stack.program for stack in self.stacks if stack.described.merging)
            raise NothingMergedError(
                f"nothing was merged in this call ({reasons}). Use a larger image, a lower min_tokens or "
                f"other parts, or take merging out with handle.remove()."
            )
        self.merged_calls += merges
        self.full_calls += not merges
        return None if skipping is None else skipping.end_call(output)

    @property
    def tokens_seen(self) -> dict[str, int]:
        """block.part -> tokens it ran on in its last call; of a span of several blocks the parts of the first."""
        seen = {}
        for row, count in self.noted.items():
            block = row.block if isinstance(row, AttentionRow) else row.first
            whole = chosen_parts(block.parts, self.config.parts, self.config.separate_keys)
            for part in whole if row.part is None else (row.part,):
                seen[block.path(part)] = count
        return seen

    def count_refresh(self, selected: bool) -> None:
        self.selections += selected
        self.weightings += 1

    # -- what a call does not say itself -----------------------------------------------------------------------------

    def _read_facts(self, call: Call, step: Step) -> None:
        """Gather what every stack needs to know. What others put into the model is looked for at the first step."""
        if step.number == 0 or self.steps.forced is not None:
            self._surroundings = self._inspected.look_around()
        cached, subset_keys, caches = self._surroundings
        if caches and self.steps.skipping is not None:
            refuse_cache(self.config.step_speedup)
        fixed_order = call.fixed_order or (CACHE if caches else "")
        self._follow_order(bool(fixed_order or call.positional))
        found = Facts(
            self._config_now(),
            call.positional,
            fixed_order,
            call.interleaved,
            cached,
            subset_keys,
            self.reference_ratio,
        )
        if found != self.facts:  # the same object is handed on, by which stacks see that nothing is new
            self.facts = found

    def look_around(self) -> Surroundings:
        subsets = self.config.correction is not None and self.config.keys != "all" and self.keep is None
        return look_around([stack.described for stack in self.stacks], self.config.parts, subsets)

    def _follow_order(self, fixed: bool) -> None:
        """Merge around parts while calls need tokens in grid order, if the choice of scope was left to us."""
        scope = "site" if fixed and self._chooses_scope else self._suited.merged_per
        if scope == self.config.scope:
            return
        self.config = self.config.with_scope(scope)
        self.state.forget()
        for stack in self.stacks:
            stack.detach()
            stack.attach()

    def _config_now(self) -> MergeConfig | None:
        """The config with the ratio of this step as a number; None where that merges nothing."""
        if not self.config.varies:
            return self.config
        progress = self.steps.progress
        if progress is None:
            raise MergeRuntimeError(
                f"{type(self.model).__name__} was called without a timestep, so a ratio that changes cannot follow the "
                f"steps: pass timesteps, or give one number as ratio."
            )
        return self.config.at(progress)

    # -- nothing merged ----------------------------------------------------------------------------------------------

    def _merges_later(self) -> bool:
        """Whether a ratio that changes would merge anything on these grids at another step."""
        configs = [config for progress in self.config.moments() if (config := self.config.at(progress)) is not None]
        return any(
            layout_of(config, stack.call.grid, stack.stack.downsample, protected_tokens(self.keep, stack.call.grid))[0]
            is not None
            for config in configs
            for stack in self.stacks
            if stack.call is not None and stack.described.merging
        )


def session_of(model: nn.Module) -> Session | None:
    """The session attached to a model, if there is one: found by its hook, so a deepcopy knows its own."""
    for hook in model._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, Session):
            return owner
    return None
