"""What one generation remembers: which step it is at, what must be made anew, and the operators in use."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tokenmerge.config import Operators

# Guidance makes two or three calls at one timestep; more than this many are not one sampler's step.
MOST_CALLS_PER_STEP = 4


@dataclass
class BranchPlan:
    """Operators of one group of blocks in one guidance branch.

    What is due stays due until a block of the group has run, so a cache that skips blocks delays a refresh and never
    loses it. Sites read nothing but these fields, so that torch.compile sees tensors and two flags.
    """

    operators: Operators | None = None
    select_due: bool = True
    weights_due: bool = True


@dataclass
class GroupPlan:
    """The plans of blocks that share one: a plan for each call made within a step."""

    branches: list[BranchPlan] = field(default_factory=list)
    current: BranchPlan = field(default_factory=BranchPlan)

    def begin(self, branch: int, select: bool, weights: bool) -> None:
        while len(self.branches) <= branch:
            self.branches.append(BranchPlan())
        self.current = self.branches[branch]
        self.current.select_due |= select
        self.current.weights_due |= weights or select


class MergePlan:
    """Follows a model through the steps of a generation and says when destinations and weights are due.

    A call without a timestep counts as the next step.
    """

    def __init__(self, select_every: int, weights_every: int) -> None:
        self.select_every = select_every
        self.weights_every = weights_every
        self.generation = 0  # how many were begun
        self.step = 0
        self._branch = 0
        self._timestep: float | None = None
        self._signature: Hashable = None
        self._groups: dict[Hashable, GroupPlan] = {}

    def begin_call(self, timestep: float | None, signature: Hashable) -> None:
        """Learn of a call to the model. `signature` is its batch, size, dtype and device: a change starts afresh."""
        started = self.generation > 0 and self._signature == signature
        if started and timestep is not None and timestep == self._timestep:
            self._branch += 1
            started = self._branch < MOST_CALLS_PER_STEP
        elif started and (timestep is None or self._timestep is None or timestep < self._timestep):
            self.step += 1
            self._branch = 0
        else:
            started = False
        if not started:
            self.forget()
            self.generation += 1
        self._timestep, self._signature = timestep, signature
        for group in self._groups.values():
            group.begin(self._branch, *self._due())

    def _due(self) -> tuple[bool, bool]:
        return self.step % self.select_every == 0, self.step % self.weights_every == 0

    def group(self, key: Hashable) -> GroupPlan:
        """The plan shared by all blocks that give the same key."""
        if key not in self._groups:
            self._groups[key] = GroupPlan()
            self._groups[key].begin(self._branch, *self._due())
        return self._groups[key]

    def make_due(self, select: bool, weights: bool) -> None:
        """Have the next call make new destinations or weights whatever the schedule says."""
        for group in self._groups.values():
            for branch in group.branches:
                branch.select_due |= select
                branch.weights_due |= weights or select

    def forget(self) -> None:
        """Drop every operator; the next call starts a generation."""
        self.step = 0
        self._branch = 0
        self._timestep = None
        self._signature = None
        for group in self._groups.values():
            # In place: sites hold on to their group.
            group.branches.clear()
            group.begin(0, True, True)
