"""Which steps run full, and when plans are refreshed: a pure function of the policy and the steps so far."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum

# What quotients of timesteps, float32 where they are, differ by from what they stand for.
ROUNDING = 1e-6


class Kind(Enum):
    """What a step does."""

    FULL = "full"  # every block runs on all tokens
    CALIBRATE = "calibrate"  # full, then merged on the same input, so that the merging error is known exactly
    MERGED = "merged"


@dataclass(frozen=True)
class Policy:
    """How often things happen over the steps of a generation.

    select_every, weights_every: steps between new destinations, and between new weights for them.
    merge_every: merge at every this many steps and run the others full.
    full_every: calibrate at every this many steps; 0 never does.
    within: also calibrate once this fraction of the noise has been removed since the last time, never twice in a row.
    """

    select_every: int = 1
    weights_every: int = 1
    merge_every: int = 1
    full_every: int = 0
    within: float = math.inf


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
    ['merged', 'calibrate', 'merged', 'merged', 'merged', 'calibrate']
    """

    policy: Policy
    number: int = 0
    full: bool = False  # this step calibrates
    last_full: int = 0  # the number of the last step that did; before the first one, where it would have been
    full_before: int = 0  # and of the one before it
    progress_at_full: float = 0.0

    @classmethod
    def begin(cls, policy: Policy) -> Schedule:
        """The first step of a generation."""
        first = 1  # the first step that calibrates
        return cls(policy, last_full=first - policy.full_every)

    def after(self, progress: float) -> Schedule:
        """The next step, at which `progress` of the noise is removed, from 0 to 1."""
        number = self.number + 1
        since = number - self.last_full
        far = since > 1 and progress - self.progress_at_full >= self.policy.within - ROUNDING
        if not self.policy.full_every or not (far or since >= self.policy.full_every):
            return dataclasses.replace(self, number=number, full=False)
        return Schedule(self.policy, number, True, number, self.last_full, progress)

    @property
    def step(self) -> Step:
        """What this step does."""
        policy = self.policy
        merges = not self.full and self.number % policy.merge_every == 0
        kind = Kind.CALIBRATE if self.full else Kind.MERGED if merges else Kind.FULL
        return Step(self.number, kind, self._due(policy.select_every), self._due(policy.weights_every))

    def _due(self, every: int) -> bool:
        """Whether something refreshed every `every` steps is due now.

        The merging error is calibrated for the plan in use. So with calibration plans change only at those steps, and
        what came due since the last one is due then.
        """
        if not self.policy.full_every or self.number == 0:
            return self.number % every == 0
        return self.full and self.number // every > self.full_before // every


def steps_of(policy: Policy, count: int) -> list[Step]:
    """The steps of a generation whose timesteps are evenly spaced."""
    schedule = Schedule.begin(policy)
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

    @property
    def total(self) -> int:
        return self.select + self.weights + self.steady + self.full


def count_steps(policy: Policy, steps: int | None) -> StepCounts:
    """Count the steps of a generation; None counts one so long that its beginning does not matter."""
    cycle = 12 * math.lcm(policy.select_every, policy.weights_every, policy.merge_every, policy.full_every or 1)
    kinds = []
    select_due = weights_due = False
    for step in steps_of(policy, 2 * cycle if steps is None else steps):
        select_due, weights_due = select_due or step.select, weights_due or step.weights
        kinds.append("full" if step.kind is not Kind.MERGED else _work(select_due, weights_due))
        if step.kind is not Kind.FULL:  # the merged run of a calibrating step makes what is due
            select_due = weights_due = False
    counts = Counter(kinds[cycle:] if steps is None else kinds)
    return StepCounts(counts["select"], counts["weights"], counts["steady"], counts["full"])


def _work(select_due: bool, weights_due: bool) -> str:
    return "select" if select_due else "weights" if weights_due else "steady"
