"""What one generation remembers: which step it is at, what must be made anew, and the operators in use."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from tokenmerge.methods.interfaces import Operators

# What quotients of timesteps, float32 where they are, differ by from what they stand for.
ROUNDING = 1e-6
# Guidance takes two or three texts; more than this many are not one picture's.
MOST_BRANCHES = 4


@dataclass
class BranchPlan:
    """Operators of one group of blocks in one guidance branch.

    What is due stays due until a block of the group has run, so a cache that skips blocks delays a refresh and never
    loses it. Sites read nothing but these fields, so that torch.compile sees tensors and two flags.
    """

    operators: Operators | None = None
    select_due: bool = True
    weights_due: bool = True


@dataclass(frozen=True)
class Learnt:
    """What a step told that ran whole and merged (see `tokenmerge.engine.detail`)."""

    merged: Tensor  # (B, M, C) what merged tokens gave, less its mean over them
    lost: Tensor  # (B, N, C) what merging lost of what all gave


@dataclass
class BranchMemory:
    """What a block or a part gave at earlier steps, in one guidance branch."""

    output: Tensor | None = None
    learnt: tuple[Learnt, ...] = ()  # the newest first
    learns: bool = False  # the whole step that gave `output` runs once more, merged, to tell what is lost
    step: int = -1
    learnt_now: bool = False  # the newest of them was learnt at this very step, which may have several calls

    def clear(self) -> None:
        self.output, self.learnt = None, ()

    @property
    def tensors(self) -> list[Tensor]:
        output = [] if self.output is None else [self.output]
        return output + [tensor for each in self.learnt for tensor in (each.merged, each.lost)]


@dataclass
class Memory:
    """What a block or a part gave at earlier steps: a memory for each guidance branch."""

    branches: list[BranchMemory] = field(default_factory=list)
    current: BranchMemory = field(default_factory=BranchMemory)
    in_region_order: bool = False
    outlasts_plans: bool = False  # merged tokens are the same ones whatever the plan

    def begin(self, branch: int, step: int, new_plan: bool) -> None:
        while len(self.branches) <= branch:
            self.branches.append(BranchMemory())
        self.current = self.branches[branch]
        # Said here, for in compiled code every number of a step would be a graph of its own.
        self.current.learnt_now, self.current.step = self.current.learnt_now and step == self.current.step, step
        if new_plan and not self.outlasts_plans:
            self.current.learnt = ()  # tokens that are merged otherwise cannot be compared with those of now

    def put_in_order(self, in_region_order: bool) -> None:
        """Tokens come in another order from now on: what is remembered in the old one is of no use."""
        if in_region_order != self.in_region_order:
            self.in_region_order = in_region_order
            for branch in self.branches:
                branch.clear()


@dataclass
class GroupPlan:
    """The plans of blocks that share one: a plan for each guidance branch."""

    branches: list[BranchPlan] = field(default_factory=list)
    current: BranchPlan = field(default_factory=BranchPlan)

    def begin(self, branch: int, select: bool, weights: bool) -> None:
        while len(self.branches) <= branch:
            self.branches.append(BranchPlan())
        self.current = self.branches[branch]
        self.current.select_due |= select
        self.current.weights_due |= weights or select
        if select:
            self.current.operators = None  # soon replaced, or no longer in use: a change of ratio leaves groups behind


class MergePlan:
    """Follows a model through the steps of a generation and says when destinations and weights are due.

    A call without a timestep counts as the next step.
    """

    def __init__(
        self,
        select_every: int,
        weights_every: int,
        whole_every: int = 0,
        whole_within: float = math.inf,
        learns: bool = False,
    ) -> None:
        self.select_every = select_every
        self.weights_every = weights_every
        self.whole_every = whole_every
        self.whole_within = whole_within  # sooner than that where so much of the noise is gone
        self.learns = learns  # whole steps run merged as well, to tell what that loses
        self.whole = False  # does this step run whole, for its detail?
        self.generation = 0  # how many were begun
        self.step = 0
        self.branch = 0
        self._timestep: float | None = None
        self._first_timestep: float | None = None
        self._whole_step = self._whole_before = 0  # the last of those steps, and the one before it
        self._whole_progress = 0.0  # at the last
        self._signature: Hashable = None
        self._conditions: list[Hashable] = []  # one for each guidance branch
        self._groups: dict[Hashable, GroupPlan] = {}
        self._memories: dict[Hashable, Memory] = {}

    def begin_call(self, timestep: float | None, signature: Hashable, condition: Hashable = None) -> None:
        """Learn of a call to the model.

        signature: its batch, size, dtype and device: a change starts afresh.
        condition: the text it is given. Each text of the first step is a guidance branch with plans of its own; one
            that comes later is another picture's, even where the timesteps go on as if it were the same.
        """
        same_step = timestep is not None and timestep == self._timestep
        next_step = timestep is None or self._timestep is None or timestep < self._timestep
        known = condition in self._conditions
        may_be_new = same_step and self.step == 0 and len(self._conditions) < MOST_BRANCHES
        started = self._signature == signature and (same_step or next_step) and (known or may_be_new)
        goes_on = started and self.generation > 0
        if not goes_on:
            self.forget()
            self.generation += 1
            self._first_timestep = timestep
        self._timestep, self._signature = timestep, signature
        if goes_on and not same_step:
            self.step += 1
            self._follow_whole_steps()
        if condition not in self._conditions:
            self._conditions.append(condition)
        self.branch = self._conditions.index(condition)
        select, weights = self._due()
        for group in self._groups.values():
            group.begin(self.branch, select, weights)
        for memory in self._memories.values():
            memory.begin(self.branch, self.step, select)
            if self.step == 0:
                # A second picture of a single step with the same text looks like the first step once more.
                memory.current.clear()

    @property
    def progress(self) -> float | None:
        """How much of the noise is gone, from 0 at the first step towards 1; None without timesteps."""
        if self._timestep is None or self._first_timestep is None:
            return None
        return 1 - self._timestep / self._first_timestep if self._first_timestep else 0.0

    def _follow_whole_steps(self) -> None:
        """Settle whether the step that begins runs whole.

        The second step is the first to: a picture of a single step, or a single call, is merged like any other. Large
        steps leave what was learnt behind sooner; but of two in a row one is merged.
        """
        progress = self.progress or 0.0
        since = self.step - self._whole_step
        far = since > 1 and progress - self._whole_progress >= self.whole_within - ROUNDING
        self.whole = self.whole_every > 0 and (far or since >= self.whole_every)
        if self.whole:
            self._whole_before, self._whole_step, self._whole_progress = self._whole_step, self.step, progress

    def _due(self) -> tuple[bool, bool]:
        return self._comes_up(self.select_every), self._comes_up(self.weights_every)

    def _comes_up(self, every: int) -> bool:
        """Is what is made every so many steps made at this one?

        What merging loses is learnt at a whole step for the plan that is in use there. So plans change at those alone,
        and what would have come up since the last comes up then.
        """
        if not self.learns or self.step == 0:
            return self.step % every == 0
        return self.whole and self.step // every > self._whole_before // every

    def group(self, key: Hashable) -> GroupPlan:
        """The plan shared by all blocks that give the same key."""
        if key not in self._groups:
            self._groups[key] = GroupPlan()
            self._groups[key].begin(self.branch, *self._due())
        return self._groups[key]

    def memory(self, key: Hashable) -> Memory:
        """What a block or a part gave before, kept from step to step of a generation."""
        if key not in self._memories:
            self._memories[key] = Memory()
            self._memories[key].begin(self.branch, self.step, new_plan=True)
        return self._memories[key]

    def learn(self, learns: bool) -> None:
        """Say whether this call runs merged only to tell what merging loses."""
        for memory in self._memories.values():
            memory.current.learns = learns

    @property
    def held(self) -> int:
        """Bytes of what is remembered."""
        branches = (branch for memory in self._memories.values() for branch in memory.branches)
        return sum(tensor.nbytes for branch in branches for tensor in branch.tensors)

    def make_due(self, select: bool, weights: bool) -> None:
        """Have the next call make new destinations or weights whatever the schedule says."""
        for group in self._groups.values():
            for branch in group.branches:
                branch.select_due |= select
                branch.weights_due |= weights or select

    def forget(self) -> None:
        """Drop every operator; the next call starts a generation."""
        self.step = 0
        self.branch = 0
        self.whole = False
        self._whole_step, self._whole_progress = 1 - self.whole_every, 0.0
        self._timestep = None
        self._signature = None
        self._conditions.clear()
        for group in self._groups.values():
            # In place: sites hold on to their group.
            group.branches.clear()
            group.begin(0, True, True)
        for memory in self._memories.values():
            memory.branches.clear()
            memory.begin(0, 0, new_plan=True)
