"""The timestep of a call as a number, without waiting for the device.

A pipeline keeps all its timesteps in one tensor and passes them one by one. Some pass a view of it: where the view
begins says which timestep it is. Others compute with it first (Flux divides by 1000) or with its sigma (Cosmos Predict
2 takes sigma / (1 + sigma)): then the scheduler's own count of steps says which it is. So the device is read a few
times a generation, for all of them. Only a loop that does neither, and makes its timesteps on the device, has to wait
at every call: whether a step is full is decided on the host.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.ops.host import changes_of, read_back

# What a model is given as its timestep: the noise that is left in any unit, time from 0 to 1 as noise is removed, or
# log(sigma) / 4, which becomes negative (EDM).
Unit = Literal["noise", "rises", "logarithm"]
# A schedule has at most the 1,000 steps of training; what lies in a larger storage is no list of timesteps.
LONGEST_SCHEDULE = 4096
# What half precision leaves of a timestep.
ROUNDING = 0.01


@dataclass(frozen=True)
class Reading:
    """The timestep of a call, and its place among those of its schedule if that is known."""

    value: float | None  # None without a timestep, and on the meta device
    schedule: Timesteps | None = None
    index: int = 0


class Timesteps:
    """All timesteps of a generation, read once."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor  # kept, so that no other tensor comes to lie in its storage
        self._version = changes_of(tensor)
        count = _room(tensor)
        self.values: list[float] = read_back(tensor.as_strided((count,), (1,), 0).float())
        # For timesteps that are computed from these: the first one that was read, whether a second one agreed, and
        # then all of them.
        self.first: tuple[int, float] | None = None
        self.agrees: bool | None = None
        self.computed: list[float] = []

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the same storage, unchanged since."""
        # Inference tensors do not count their changes: they are taken to be unchanged.
        return _storage(tensor) == _storage(self._tensor) and changes_of(tensor) == self._version


class Clock:
    """Reads the timesteps of one model's calls."""

    def __init__(self) -> None:
        self._pipeline: Any = None  # a weak reference
        self._known: Timesteps | None = None
        self.waits = 0  # how often a value was read from a device

    def watch(self, pipeline: Any) -> None:
        """Follow the scheduler of the pipeline that the model belongs to."""
        self._pipeline = weakref.ref(pipeline)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pipeline": None}  # a copy of the model belongs to another pipeline

    def read(self, timestep: Any, unit: Unit = "noise") -> Reading:
        """The timestep of a call as the noise that is left, whatever unit the model is given it in."""
        if timestep is None or (isinstance(timestep, Tensor) and timestep.is_meta):
            return Reading(None)
        reading = self._read(timestep if isinstance(timestep, Tensor) else torch.tensor(float(timestep)), unit)
        _check(reading.value)
        return reading

    def _read(self, timestep: Tensor, unit: Unit) -> Reading:
        if _is_one_of_many(timestep):
            schedule = self._timesteps(timestep)
            index = int(timestep.storage_offset())
            return Reading(_left(schedule.values[index], unit), schedule, index)
        if timestep.device.type == "cpu":
            return Reading(_largest(timestep, unit))
        return self._by_scheduler(timestep, unit) or Reading(self._waited(timestep, unit))

    def _timesteps(self, tensor: Tensor) -> Timesteps:
        if self._known is None or not self._known.holds(tensor):
            self.waits += tensor.device.type != "cpu"
            self._known = Timesteps(tensor)
        return self._known

    def _waited(self, timestep: Tensor, unit: Unit) -> float:
        self.waits += 1
        return _largest(timestep, unit)

    def _by_scheduler(self, timestep: Tensor, unit: Unit) -> Reading | None:
        """By the scheduler's count of steps, once two timesteps of a generation have shown that it is this loop's."""
        scheduler = self._scheduler()
        timesteps = getattr(scheduler, "timesteps", None)
        if not isinstance(timesteps, Tensor) or not 1 < _room(timesteps) <= LONGEST_SCHEDULE:
            return None
        index = _steps_taken(scheduler)
        schedule = self._timesteps(timesteps)
        index = None if index is None else index + int(timesteps.storage_offset())
        if index is None or index >= len(schedule.values) or schedule.agrees is False:
            return None
        # Logarithms are compared as they are: those of a schedule are no multiple of what they stand for.
        compared: Unit = "noise" if unit == "logarithm" else unit
        if schedule.agrees is None:
            value = self._waited(timestep, compared)
            self._compare(schedule, index, value)
            if schedule.agrees is False:
                return None
        if schedule.agrees:
            value = schedule.computed[index]
        return Reading(_left(value, unit) if unit == "logarithm" else value, schedule, index)

    def _compare(self, schedule: Timesteps, index: int, value: float) -> None:
        """Find out how timesteps are computed from the schedule. Those of the first two steps are read for it."""
        if schedule.first is None:
            schedule.first = index, value
        first, given = schedule.first
        if index == first:  # perhaps another guidance branch
            schedule.agrees = None if _alike(value, given) else False
            return
        for values in self._lists(schedule):
            computed = [each * given / (values[first] or 1.0) for each in values]
            if index < len(computed) and _alike(value, computed[index]):
                schedule.agrees, schedule.computed = True, computed
                return
        schedule.agrees = False

    def _lists(self, schedule: Timesteps) -> Iterator[list[float]]:
        """What a loop may compute its timesteps from, up to a factor: the schedule, or the share of noise by sigma."""
        yield schedule.values
        scheduler = self._scheduler()
        sigmas = getattr(scheduler, "sigmas", None)
        if isinstance(sigmas, Tensor) and sigmas.dim() == 1 and len(sigmas) >= len(scheduler.timesteps):
            self.waits += sigmas.device.type != "cpu"
            before = [0.0] * int(scheduler.timesteps.storage_offset())
            yield before + [sigma / (1 + sigma) for sigma in read_back(sigmas)]

    def _scheduler(self) -> Any:
        return None if self._pipeline is None else getattr(self._pipeline(), "scheduler", None)


def _alike(value: float, expected: float) -> bool:
    return abs(value - expected) <= ROUNDING * abs(expected)


def _steps_taken(scheduler: Any) -> int | None:
    """How many steps a scheduler has taken of its timesteps; None where it does not count."""
    if not hasattr(scheduler, "step_index"):
        return None
    taken = scheduler.step_index
    if taken is None:
        taken = getattr(scheduler, "begin_index", None) or 0
    return taken if isinstance(taken, int) else None


def _is_one_of_many(tensor: Tensor) -> bool:
    """Whether it is a view of a single number in a list."""
    single = all(length == 1 or stride == 0 for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return single and 1 < _room(tensor) <= LONGEST_SCHEDULE


def _room(tensor: Tensor) -> int:
    """How many numbers its storage holds."""
    return tensor.untyped_storage().nbytes() // tensor.itemsize


def _storage(tensor: Tensor) -> tuple[int, Any]:
    return tensor.untyped_storage()._cdata, tensor.dtype


def _largest(timestep: Tensor, unit: Unit) -> float:
    # Tokens that are given, not generated, may have another timestep: 0.
    return _left(float(read_back(timestep.max())), unit)


def _left(time: float, unit: Unit) -> float:
    if unit == "logarithm":
        return math.exp(4 * time)
    return 1 - time if unit == "rises" else time


def _check(value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise MergeRuntimeError(
            f"read_call returned the timestep {value}: it says how much noise is left, falls towards 0 and is never "
            f"negative. For a model whose time rises from 0 to 1 set timestep_rises; for one that takes log(sigma) / 4 "
            f"set timestep_logarithmic."
        )
