"""Which step of which image each call of a model is, and what that step does."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.clock import Clock
from tokenmerge.engine.describe import policy_of, warn_all_was_full
from tokenmerge.engine.follow import Follower, RisingTime
from tokenmerge.engine.forecast import CleanImage, Point
from tokenmerge.engine.schedule import Kind, Schedule, Step
from tokenmerge.engine.skipping import Skipping, TimelineOf
from tokenmerge.engine.state import State
from tokenmerge.models.arguments import Args, Kwargs, argument_names, given_argument
from tokenmerge.models.base import Call, Family

# Of a call that is left out of the schedule.
FULL_STEP = Step(-1, Kind.FULL, select=False, weights=False)


class Steps:
    """Follows the calls of one model through the schedule of each image."""

    def __init__(
        self, model: nn.Module, family: Family, config: MergeConfig, state: State, timeline_of: TimelineOf | None
    ) -> None:
        """timeline_of: what the sampler says about an image's steps."""
        self.family, self.config, self.state = family, config, state
        self.policy = policy_of(config)
        self.schedule = Schedule.begin(self.policy)
        self.forced: Step | None = None  # set to have the next calls run as this step, for counting
        self.forced_progress: float | None = None
        self.named_branch: Hashable = None  # set by loops that say which image a call belongs to
        self.skipping = Skipping(model, timeline_of) if self.policy.step_speedup > 1 else None
        self.clock, self._follower, self._rising_time = Clock(), Follower(), RisingTime()
        self._names = argument_names(model)

    @property
    def progress(self) -> float | None:
        """How much of the noise is removed at this step; None without timesteps."""
        return self._follower.progress if self.forced_progress is None else self.forced_progress

    def reset(self) -> None:
        """Forget all images, as if the next call were the first."""
        self._follower.forget()
        self._begin_image(None, release=True)

    def advance(self, call: Call, args: Args, kwargs: Kwargs, inputs: Tensor) -> Step:
        """Find out which step of which image a call is; returns what it does."""
        if self.forced is not None:
            self.state.begin_call(0, self.forced.number, self.forced.select, self.forced.weights)
            return self.forced
        if call.full:
            return FULL_STEP
        # What is made in inference mode cannot take part in training.
        signature = (call.signature, torch.is_inference_mode_enabled())
        reading = self.clock.read(call.timestep, self.family.timestep_unit)
        branch = self.named_branch if call.branch is None else call.branch
        if branch is None:
            position = self._follower.observe(reading, signature, self._condition(args, kwargs), inputs)
            self._rising_time.observe(reading.value, position.new_image)
        else:
            position = self._follower.observe_named(reading.value, (signature, branch))
        if position.new_image:
            self._begin_image(reading.value)
        if self.skipping is not None and (position.new_image or position.new_step):
            self.schedule = self.schedule.knowing(self.skipping.begin_step(reading.value, inputs))
        if position.new_step:
            self.schedule = self.schedule.after(self._follower.progress or 0.0)
        step = self.schedule.step
        if self.skipping is not None:
            clean = None if call.clean is None else CleanImage.of(inputs, *call.clean)
            step = self.skipping.begin_call(position.branch, step, Point(step.number, reading.value), clean)
        if step.kind is not Kind.SKIPPED:
            self.state.begin_call(position.branch, step.number, step.select, step.weights)
        return step

    def _begin_image(self, first_timestep: float | None, release: bool = False) -> None:
        self.state.forget(release)
        timeline = None if self.skipping is None else self.skipping.begin_image(first_timestep)
        self.schedule = Schedule.begin(self.policy, timeline)
        if timeline is not None and timeline.short and not self.config.merges_tokens:
            warn_all_was_full(self.config)  # now, for many never take a method out

    def _condition(self, args: Args, kwargs: Kwargs) -> tuple[object, ...]:
        """What the image is made from, as far as known."""
        names = (*self.family.conditions, *self.family.positions)
        values = (given_argument(self._names, args, kwargs, name) for name in names)
        # Pipelines that pass a list of texts make a new list, of the same texts, at every step.
        return tuple(item for value in values for item in (value if isinstance(value, list) else (value,)))
