"""What a generation keeps from step to step: operators for each plan group, merging errors for each span.

Each guidance branch has its own. Spans hold on to their group and their memory, whose `current` is set when a call
begins, so that torch.compile sees tensors and a few flags and never a step's number.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tokenmerge.config.interfaces import Operators


@dataclass
class BranchOperators:
    """The operators of one plan group in one guidance branch.

    What is due stays due until a block of the group has run, so a cache that skips blocks delays a refresh and never
    loses it.
    """

    operators: Operators | None = None
    select_due: bool = True
    weights_due: bool = True
    derived: dict[Hashable, Any] = field(default_factory=dict)  # made from the operators once for all blocks

    @property
    def refresh_due(self) -> bool:
        return self.select_due or self.weights_due


@dataclass
class Group:
    """The plans of blocks that share one: operators for each guidance branch."""

    branches: dict[int, BranchOperators] = field(default_factory=dict)
    current: BranchOperators = field(default_factory=BranchOperators)

    def begin(self, branch: int, select: bool, weights: bool) -> None:
        self.current = current = self.branches.setdefault(branch, BranchOperators())
        current.select_due |= select
        current.weights_due |= weights or select
        if select:
            current.operators = None  # soon replaced, or no longer in use: a change of ratio leaves groups behind


# What a memory of merging errors holds that is as large as tokens.
LARGE = ("errors", "merged", "fit")


@dataclass
class BranchMemory:
    """What a span recorded at its last two full steps, in one guidance branch.

    It is written in place, so that a CUDA graph finds it at the same address at every step. What is not recorded yet is
    zero, and adds nothing.
    """

    errors: Tensor | None = None  # (B, 2, N, C) what all tokens gave, less what unmerging gives; the newest first
    merged: Tensor | None = None  # (B, 2, M, C) what the merged tokens gave, less its mean over them
    fit: Tensor | None = None  # (B, 2, M, C) whose products with merged tokens are the weights of the errors
    bounds: Tensor | None = None  # (2, B, 2, 1, 1) the least and the largest weight
    on_host: dict[str, Tensor] = field(default_factory=dict)  # the first three between steps, if they are offloaded
    recorded: bool = False
    calibrating: bool = False  # this run is the merged one of a full step
    waiting: bool = False  # the newest errors are still the output on all tokens: the merged run is to come
    step: int = -1
    calibrated_now: bool = False  # the newest is of this very step, which may have several calls

    @property
    def tensors(self) -> list[Tensor]:
        large = (self.errors, self.merged, self.fit, *self.on_host.values())
        return [tensor for tensor in large if tensor is not None]

    def fetch(self, device: torch.device, *names: str) -> None:
        """Bring what is kept on the host to the device, for a moment."""
        for name in names:
            if name in self.on_host:
                setattr(self, name, self.on_host[name].to(device, non_blocking=True))

    def put_away(self, changed: bool) -> None:
        """Leave nothing large on the device. Only the device's queue reads and writes the host's copy, in order."""
        for name in LARGE:
            tensor = getattr(self, name)
            if tensor is not None and changed:
                self.on_host[name] = _on_host(tensor, self.on_host.get(name))
            setattr(self, name, None)

    def forget(self) -> None:
        """Begin again, in the same memory."""
        if not (self.recorded or self.waiting):
            return
        if self.on_host or any(tensor.is_inference() != torch.is_inference_mode_enabled() for tensor in self.tensors):
            # What is made in inference mode is not written to outside of it. The host's copy may still be read.
            self.release()
        for tensor in (self.errors, self.merged):
            if tensor is not None:
                tensor.zero_()
        self.recorded = self.waiting = False

    def release(self) -> None:
        self.errors = self.merged = self.fit = self.bounds = None
        self.on_host.clear()
        self.recorded = self.waiting = False


def _on_host(tensor: Tensor, room: Tensor | None) -> Tensor:
    """A copy on the host, without waiting for it: in pinned memory, and in the `room` of the last one if it fits."""
    if tensor.device.type in ("cpu", "meta"):
        return tensor
    if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
        room = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda and torch.cuda.is_available())
    room.copy_(tensor, non_blocking=True)
    return room


@dataclass
class Memory:
    """What a span recorded at full steps: a memory for each guidance branch."""

    branches: dict[int, BranchMemory] = field(default_factory=dict)
    current: BranchMemory = field(default_factory=BranchMemory)
    reordered: bool = False
    outlasts_plans: bool = False  # merged tokens are the same ones whatever the plan
    offloads: bool = False  # it is on the host between steps

    def begin(self, branch: int, step: int, new_plan: bool) -> None:
        self.current = current = self.branches.setdefault(branch, BranchMemory())
        # Compared here: in compiled code every number of a step would be another graph.
        current.calibrated_now, current.step = current.calibrated_now and step == current.step, step
        if new_plan and not self.outlasts_plans:
            current.forget()  # tokens merged by another plan cannot be compared with these
        elif step == 0:
            # A second image of a single step with the same text looks like the first step once more.
            current.forget()

    def set_order(self, reordered: bool) -> None:
        """Forget what was recorded in another order of tokens."""
        if reordered != self.reordered:
            self.reordered = reordered
            for branch in self.branches.values():
                branch.forget()


class State:
    """Everything that one model's merging keeps."""

    def __init__(self) -> None:
        self.branch = self.step = 0
        self._due = True, True
        self._groups: dict[Hashable, Group] = {}
        self._memories: dict[Hashable, Memory] = {}

    def begin_call(self, branch: int, step: int, select: bool, weights: bool) -> None:
        self.branch, self.step, self._due = branch, step, (select, weights)
        for group in self._groups.values():
            group.begin(branch, select, weights)
        for memory in self._memories.values():
            memory.begin(branch, step, select)

    def group(self, key: Hashable) -> Group:
        """The plan shared by all spans with the same key."""
        if key not in self._groups:
            self._groups[key] = Group()
            self._groups[key].begin(self.branch, *self._due)
        return self._groups[key]

    def memory(self, key: Hashable) -> Memory:
        """What a span recorded, kept over the steps of a generation."""
        if key not in self._memories:
            self._memories[key] = Memory()
            self._memories[key].begin(self.branch, self.step, new_plan=True)
        return self._memories[key]

    def set_calibrating(self, calibrating: bool) -> None:
        """Say whether this run is the merged one of a full step."""
        for memory in self._memories.values():
            memory.current.calibrating = calibrating

    @property
    def cached_bytes(self) -> int:
        branches = (branch for memory in self._memories.values() for branch in memory.branches.values())
        return sum(tensor.nbytes for branch in branches for tensor in branch.tensors)

    def forget(self, release: bool = False) -> None:
        """Drop every operator and every memory, in place, because spans keep references to theirs.

        release: give up memory that the next image could be recorded in.
        """
        self.branch = self.step = 0
        # Not new objects: compiled code is thrown away with those it has seen.
        for group in self._groups.values():
            for operators in group.branches.values():
                operators.operators, operators.select_due, operators.weights_due = None, True, True
                operators.derived.clear()
            group.begin(0, True, True)
        for memory in self._memories.values():
            for branch in memory.branches.values():
                # The image before this one had no use for what was not recorded: its size may have been another.
                (branch.forget if branch.recorded and not release else branch.release)()
                branch.step, branch.calibrated_now = -1, False
            memory.begin(0, 0, new_plan=True)
