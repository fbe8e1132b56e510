"""What each step does, and when plans are refreshed: a pure function of the policy and the steps so far."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from tokenmerge.engine.skipped_steps import FEWEST_STEPS, computed_steps, skips_unknown

# What quotients of timesteps, float32 where they are, differ by from what they stand for.
ROUNDING = 1e-6
# A last step with less of an effect than this, relative to the one before it, cannot carry a correction and needs none.
NEGLIGIBLE = 0.25


class Kind(Enum):
    """What a step does."""

    FULL = "full"  # every block runs on all tokens
    CALIBRATE = "calibrate"  # full, then merged on the same input, so that the merging error is known exactly
    MERGED = "merged"
    SKIPPED = "skipped"  # no block runs: the output of the model is forecast (engine/forecast.py)


@dataclass(frozen=True)
class Policy:
    """How often things happen over the steps of a generation. All but `step_speedup` count computed steps.

    select_every, weights_every: steps between new destinations, and between new weights for them.
    merge_every: merge at every this many steps and run the others full.
    full_every: calibrate at the first step and at every this many steps; 0 never does.
    within: also calibrate once this fraction of the noise has been removed since the last time, never twice in a row.
    step_speedup: compute one in this many steps, on average, and skip the others.
    merges: whether tokens are merged at computed steps; if not, those run full.
    """

    select_every: int = 1
    weights_every: int = 1
    merge_every: int = 1
    full_every: int = 0
    within: float = math.inf
    step_speedup: float = 1.0
    merges: bool = True


@dataclass(frozen=True)
class Timeline:
    """The steps of one image, as its sampler has them."""

    count: int
    # How much the final image changes with the output of each step; None if the sampler is unknown or not linear.
    effects: tuple[float, ...] | None = None
    corrects: bool = True  # forecasts are made good at the next computed step, as far as is known yet

    @property
    def short(self) -> bool:
        """Whether the image has too few steps to skip any."""
        return self.count < FEWEST_STEPS

    @property
    def last(self) -> int:
        """The last step that counts. Some samplers end with one that changes next to nothing."""
        end = self.count - 1
        if self.effects is None or end < 1:
            return end
        return end - 1 if abs(self.effects[end]) < NEGLIGIBLE * abs(self.effects[end - 1]) else end

    def effect_of(self, step: int, on: int) -> float | None:
        """How much output of step `on` changes the final image as one of `step` does; None if unknown."""
        if self.effects is None or max(step, on) >= self.count or not self.effects[on]:
            return None
        return self.effects[step] / self.effects[on]


@dataclass(frozen=True)
class Step:
    """One step of a generation."""

    number: int
    kind: Kind
    select: bool  # new destinations are due
    weights: bool  # new weights are due


@dataclass(frozen=True)
class Schedule:
    """Where a generation is in its schedule. Never changed: `after` returns the schedule of the next step.

    >>> policy = Policy(select_every=5, weights_every=5, full_every=4)
    >>> [step.kind.value for step in steps_of(policy, 6)]
    ['calibrate', 'merged', 'merged', 'merged', 'calibrate', 'merged']
    """

    policy: Policy
    timeline: Timeline | None = None  # None if the sampler is not known
    number: int = 0
    computed: int = 0  # steps before this one that were computed
    in_a_row: int = 0  # steps skipped since the last one that was, with this one
    full: bool = False  # this step calibrates
    last_full: int = 0  # the last step that did, counted among computed ones
    full_before: int = 0  # and the one before it
    progress_at_full: float = 0.0
    first_progress: float = 0.0  # at the second step

    @classmethod
    def begin(cls, policy: Policy, timeline: Timeline | None = None) -> Schedule:
        """The first step of a generation. It calibrates, if any does: merged steps before that have no correction."""
        return cls(policy, timeline, full=policy.full_every > 0)

    def knowing(self, timeline: Timeline | None) -> Schedule:
        """The same step, with what is known about the sampler by now."""
        return self if timeline == self.timeline else dataclasses.replace(self, timeline=timeline)

    def after(self, progress: float) -> Schedule:
        """The next step, at which `progress` of the noise is removed, from 0 to 1."""
        number = self.number + 1
        computed = self.computed + (not self.in_a_row)
        if number == 1:
            self = dataclasses.replace(self, first_progress=progress)
        if self._skips(number, computed, progress):
            return dataclasses.replace(self, number=number, computed=computed, in_a_row=self.in_a_row + 1, full=False)
        step = dataclasses.replace(self, number=number, computed=computed, in_a_row=0, full=False)
        since = computed - self.last_full
        far = since > 1 and progress - self.progress_at_full >= self.policy.within - ROUNDING
        if not self.policy.full_every or not (far or since >= self.policy.full_every):
            return step
        return dataclasses.replace(
            step, full=True, last_full=computed, full_before=self.last_full, progress_at_full=progress
        )

    def _skips(self, number: int, computed: int, progress: float) -> bool:
        speedup, timeline = self.policy.step_speedup, self.timeline
        if timeline is None:
            return skips_unknown(number, computed, self.in_a_row, progress, speedup, self.first_progress)
        # A step that the sampler was not said to have may be the last.
        chosen = computed_steps(timeline.count, speedup, timeline.last, timeline.corrects)
        return number < timeline.count and number not in chosen

    @property
    def step(self) -> Step:
        """What this step does."""
        policy = self.policy
        if self.in_a_row:
            return Step(self.number, Kind.SKIPPED, select=False, weights=False)
        merges = policy.merges and self.computed % policy.merge_every == 0
        kind = Kind.CALIBRATE if self.full else Kind.MERGED if merges else Kind.FULL
        return Step(self.number, kind, self._due(policy.select_every), self._due(policy.weights_every))

    def _due(self, every: int) -> bool:
        """Whether something refreshed every `every` steps is due now.

        The merging error is calibrated for the plan in use. So with calibration plans change only at those steps, and
        what came due since the last one is due then.
        """
        if not self.policy.full_every or self.number == 0:
            return self.computed % every == 0
        return self.full and self.computed // every > self.full_before // every


def steps_of(policy: Policy, count: int) -> list[Step]:
    """The steps of a generation whose timesteps are evenly spaced."""
    schedule = Schedule.begin(policy, Timeline(count))
    steps = []
    for number in range(count):
        schedule = schedule if number == 0 else schedule.after(number / count)
        steps.append(schedule.step)
    return steps


@dataclass(frozen=True)
class StepCounts:
    """How many steps of each kind a generation has. What is due at a full step is made at the next merged one."""

    select: int
    weights: int
    steady: int
    full: int  # with those that calibrate
    skipped: int = 0

    @property
    def total(self) -> int:
        return self.select + self.weights + self.steady + self.full + self.skipped


def count_steps(policy: Policy, steps: int | None) -> StepCounts:
    """Count the steps of a generation; None counts one so long that its beginning does not matter."""
    if steps is None:
        return _count_many(policy)
    return _count(steps_of(policy, steps))


def _count_many(policy: Policy) -> StepCounts:
    cycle = 12 * math.lcm(policy.select_every, policy.weights_every, policy.merge_every, policy.full_every or 1)
    every_step = dataclasses.replace(policy, step_speedup=1.0)
    counts = _count(steps_of(every_step, 2 * cycle), begin=cycle)
    return dataclasses.replace(counts, skipped=round(cycle * (policy.step_speedup - 1)))


def _count(steps: list[Step], begin: int = 0) -> StepCounts:
    kinds = []
    select_due = weights_due = False
    for step in steps:
        select_due, weights_due = select_due or step.select, weights_due or step.weights
        kinds.append(_work(step.kind, select_due, weights_due))
        if step.kind in (Kind.MERGED, Kind.CALIBRATE):  # the merged run of a calibrating step makes what is due
            select_due = weights_due = False
    counts = Counter(kinds[begin:])
    return StepCounts(*(counts[work] for work in ("select", "weights", "steady", "full", "skipped")))


def _work(kind: Kind, select_due: bool, weights_due: bool) -> str:
    if kind is Kind.SKIPPED:
        return "skipped"
    if kind is not Kind.MERGED:
        return "full"
    return "select" if select_due else "weights" if weights_due else "steady"
