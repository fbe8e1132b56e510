"""Which image, step and guidance branch a call of the model belongs to.

Witnesses, the cheapest first: the timestep, the shape of the call, the conditioning by identity and then by value, and
last, where these leave a doubt, how near the noisy input is to that of an earlier call. Only the last two wait for
the device. A loop never needs them if it passes the same conditioning at every step and its timesteps are known by
their place in a schedule. Pipelines of diffusers do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmerge.engine.clock import Reading, Timesteps
from tokenmerge.errors import NothingMergedWarning
from tokenmerge.ops.host import changes_of, read_back

# Guidance takes two or three branches; loops that make several images in turns have one for each.
MOST_BRANCHES = 16
# Inputs of one image differ by less than this share of their length from call to call, even where a sampler adds noise
# in between (EDM's churn: 0.77). Two images differ by 1.4.
SAME_IMAGE = 1.05
# Steps in a row at which the timestep rises before it is said. Images of one step each seldom have as many.
RISES = 4


@dataclass(frozen=True)
class Position:
    """Where a call stands."""

    new_image: bool
    new_step: bool  # never set together with `new_image`
    branch: int  # which guidance branch, counted from 0


class Condition:
    """What an image is made from: text embeddings, labels, position ids. Known by identity, and if not, by value."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._given = tuple((value, changes_of(value)) for value in values)
        # The loop may go on to change its own.
        self._values = tuple(value.clone() if isinstance(value, Tensor) else value for value in values)

    def is_given(self, values: tuple[Any, ...]) -> bool:
        """Whether these are the very objects, unchanged."""
        return len(values) == len(self._given) and all(
            value is own and changes_of(value) == version
            for value, (own, version) in zip(values, self._given, strict=True)
        )

    def equals(self, values: tuple[Any, ...]) -> bool:
        return len(values) == len(self._values) and all(map(_equal, values, self._values))


@dataclass
class _Branch:
    condition: Condition
    # The noisy input of its last call; a copy, because loops change their own in place. None where it is not needed.
    inputs: Tensor | None
    called: bool = True  # in this step


class Follower:
    """Follows the calls of a model. A call without a timestep counts as the next step."""

    def __init__(self) -> None:
        self.waits = 0  # how often values were compared, for which a GPU is waited for
        self.forget()

    def forget(self) -> None:
        self._schedule: Timesteps | None = None
        self._index = 0
        self._timestep: float | None = None
        self._timestep_before: float | None = None  # of the step before this one
        self._first_timestep: float | None = None
        self._signature: Hashable = None
        self._branches: list[_Branch] = []
        self._first_step = True
        self._keeps_objects = False  # this image's loop passes the same objects from step to step
        self._named: dict[Hashable, int] = {}  # branches that the host has named
        self._called: set[Hashable] = set()  # those of them that were called in this step

    def observe(self, reading: Reading, signature: Hashable, condition: tuple[Any, ...], inputs: Tensor) -> Position:
        """Take note of a call.

        reading: its timestep.
        signature: its batch, size, dtype and device. Another one is another image.
        condition: what the image is made from. Each that comes at the first step is a guidance branch; one that comes
            later is another image's, even where the timesteps go on as if it were the same.
        inputs: the noisy image that the model is called with.
        """
        ordered = reading.schedule is not None and reading.schedule is self._schedule
        same_timestep = reading.value is not None and reading.value == self._timestep
        same_timestep &= not ordered or reading.index == self._index  # Heun's have each timestep twice
        branch = None
        if signature == self._signature:
            branch = self._known(reading.value, condition, inputs, same_timestep, ordered)
        if branch is None:
            joins = same_timestep and self._first_step and signature == self._signature
            # Within one schedule it is the same image's. Else a pipeline's next image may look so.
            joins = joins and len(self._branches) < MOST_BRANCHES and (ordered or not self._made_again(condition))
            return self._new(reading, signature, condition, inputs, joins)
        new_step = not same_timestep or branch.called
        if new_step:
            self._first_step = False
            for each in self._branches:
                each.called = False
        if not same_timestep:
            self._timestep_before, self._timestep = self._timestep, reading.value
        self._schedule, self._index = reading.schedule, reading.index
        branch.called, branch.inputs = True, _kept(reading, inputs)
        return Position(False, new_step, self._branches.index(branch))

    def observe_named(self, timestep: float | None, branch: Hashable) -> Position:
        """Take note of a call whose branch the host names. Every call is of one image until `forget`."""
        new_image = not self._named
        same_timestep = timestep is not None and timestep == self._timestep
        new_step = not new_image and (not same_timestep or branch in self._called)
        if new_image:
            self._first_timestep = timestep
        if new_step:
            self._called.clear()
        self._called.add(branch)
        self._timestep = timestep
        return Position(new_image, new_step, self._named.setdefault(branch, len(self._named)))

    def _new(
        self, reading: Reading, signature: Hashable, condition: tuple[Any, ...], inputs: Tensor, joins: bool
    ) -> Position:
        """A guidance branch that has not been called yet, or the first call of another image."""
        if not joins:
            self.forget()
            self._first_timestep = reading.value
        self._timestep, self._signature = reading.value, signature
        self._schedule, self._index = reading.schedule, reading.index
        self._branches.append(_Branch(Condition(condition), _kept(reading, inputs)))
        return Position(not joins, False, len(self._branches) - 1)

    def _known(
        self,
        timestep: float | None,
        condition: tuple[Any, ...],
        inputs: Tensor,
        same_timestep: bool,
        ordered: bool,
    ) -> _Branch | None:
        """The branch that the call goes on with; None where it is another's."""
        given = [branch for branch in self._branches if branch.condition.is_given(condition)]
        self._keeps_objects |= bool(given) and not same_timestep
        if not given and ordered and same_timestep and self._first_step:
            return None  # each condition that comes at the first step is a branch
        branches = given or self._equal_to(condition)
        if not branches:
            return None
        waiting = [branch for branch in branches if not (same_timestep and branch.called)]
        falls = timestep is None or self._timestep is None or timestep <= self._timestep
        if not falls and not self._rises_a_little(timestep):
            return None
        if ordered:
            # Branches that share a condition come in the same order at every step.
            return waiting[0] if waiting else None if self._first_step else branches[0]
        if falls and len(given) == 1 and waiting:
            return given[0]
        return self._nearest(waiting, branches, condition, inputs, falls)

    def _equal_to(self, condition: tuple[Any, ...]) -> list[_Branch]:
        """Branches with this condition by value, in a loop that may remake it at every step."""
        if self._keeps_objects:
            return []
        self.waits += 1
        return [branch for branch in self._branches if branch.condition.equals(condition)]

    def _nearest(
        self, waiting: list[_Branch], branches: list[_Branch], condition: tuple[Any, ...], inputs: Tensor, falls: bool
    ) -> _Branch | None:
        """The branch whose last input is nearest; None where none is near."""
        self.waits += 1
        distances = [_distance(inputs, branch.inputs) for branch in waiting or branches]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        # No sampler goes back to a larger timestep with the very same input: somebody begins again.
        if not distances[nearest] <= SAME_IMAGE or (not falls and distances[nearest] == 0):  # "not" holds for NaN too
            return None
        # The very same input once more at the first step: guidance whose two calls nothing else distinguishes.
        if not waiting and self._first_step and (distances[nearest] == 0 or self._made_again(condition)):
            return None
        return (waiting or branches)[nearest]

    def _made_again(self, condition: tuple[Any, ...]) -> bool:
        """Whether a branch has this condition by value alone: at the first step a pipeline's next image looks so."""
        if any(branch.condition.is_given(condition) for branch in self._branches):
            return False
        self.waits += 1
        return any(branch.condition.equals(condition) for branch in self._branches)

    def _rises_a_little(self, timestep: float | None) -> bool:
        """Whether a larger timestep may be the same image's: samplers that add noise stay below the step before."""
        before = self._timestep_before
        return timestep is not None and before is not None and timestep < before

    @property
    def progress(self) -> float | None:
        """How much of the noise is removed, from 0 at the first step towards 1; None without timesteps."""
        if self._timestep is None or self._first_timestep is None:
            return None
        return 1 - self._timestep / self._first_timestep if self._first_timestep else 0.0


class RisingTime:
    """Warns of a model whose time rises from step to step: each step then looks like the first of another image."""

    def __init__(self) -> None:
        self._timestep: float | None = None
        self._rises = 0

    def observe(self, timestep: float | None, new_image: bool) -> None:
        if timestep is None or timestep == self._timestep:  # another guidance branch
            return
        rises = new_image and self._timestep is not None and timestep > self._timestep
        self._rises, self._timestep = self._rises + 1 if rises else 0, timestep
        if self._rises == RISES:
            warnings.warn(
                f"the timestep rose at {RISES} steps in a row, so each was taken for the first of a new image: let the "
                f"family's read_call return how much noise is left, such as 1 - time.",
                NothingMergedWarning,
                stacklevel=2,
            )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other)
    if one.is_meta or other.is_meta or one.shape != other.shape or one.device != other.device:
        return False
    return bool(read_back((one == other).all()))


def _kept(reading: Reading, inputs: Tensor) -> Tensor | None:
    """A copy of the input, unless the schedule says more than it."""
    return inputs.detach().clone() if reading.schedule is None else None


def _distance(one: Tensor, other: Tensor | None) -> float:
    """How far two noisy inputs are from each other, as a share of the longer one; 0 for the very same."""
    if other is None:
        return math.inf
    if one.is_meta or other.is_meta:
        return 0.0
    one, other = one.detach().float(), other.float()
    norms: list[float] = read_back(torch.stack([one.norm(), other.norm(), (one - other).norm()]))
    longer = max(norms[:2])
    return norms[2] / longer if longer else 0.0
