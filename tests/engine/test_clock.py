"""Timesteps as numbers, and how often the device is read for them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from tokenmerge.engine import clock as clocks
from tokenmerge.engine.clock import Clock

TIMESTEPS = torch.tensor([999.0, 700.0, 400.0, 100.0])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What was read back so far."""
    read: list[Tensor] = []

    def read_back(tensor: Tensor) -> Any:
        read.append(tensor)
        return tensor.tolist()

    monkeypatch.setattr(clocks, "read_back", read_back)
    return read


class OnDevice(Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def on_device(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnDevice)


def test_numbers_and_missing_timesteps() -> None:
    clock = Clock()
    assert clock.read(5).value == 5.0
    assert clock.read(None).value is None
    assert clock.read(torch.empty((), device="meta")).value is None
    assert clock.read(torch.tensor([0.0, 7.0])).value == 7.0  # tokens that are given have a timestep of 0


def test_a_list_of_timesteps_is_read_once(reads: list[Tensor]) -> None:
    clock = Clock()
    readings = [clock.read(on_device(timestep.expand(2))) for timestep in TIMESTEPS]
    assert [reading.value for reading in readings] == TIMESTEPS.tolist()
    assert [reading.index for reading in readings] == [0, 1, 2, 3]
    assert len(reads) == clock.waits == 1


def test_a_list_that_was_changed_is_read_again(reads: list[Tensor]) -> None:
    clock, timesteps = Clock(), TIMESTEPS.clone()
    clock.read(on_device(timesteps[0]))
    timesteps += 1
    assert clock.read(on_device(timesteps[0])).value == 1000.0
    assert len(reads) == 2


def test_another_list_is_another_schedule() -> None:
    clock = Clock()
    one, other = clock.read(TIMESTEPS[0]), clock.read(TIMESTEPS.clone()[0])
    assert one.value == other.value
    assert one.schedule is not other.schedule


class Pipeline:
    """What is read of a pipeline: how far its scheduler has counted."""

    def __init__(self) -> None:
        self.scheduler: Any = SimpleNamespace(timesteps=TIMESTEPS, step_index=None, begin_index=None)


def test_timesteps_that_are_computed_are_known_by_the_schedulers_count(reads: list[Tensor]) -> None:
    """As Flux does: divided by 1000, in half precision."""
    clock, pipeline = Clock(), Pipeline()
    clock.watch(pipeline)
    values = []
    for step, timestep in enumerate(TIMESTEPS):
        values.append(clock.read(on_device(timestep.expand(2).to(torch.bfloat16) / 1000)).value)
        pipeline.scheduler.step_index = step + 1
    assert values == pytest.approx([0.999, 0.7, 0.4, 0.1], rel=0.01)
    assert len(reads) == 3  # the list, and two of its timesteps to see that they belong together


def test_timesteps_that_are_computed_from_sigmas_are_told_by_the_schedulers_count(reads: list[Tensor]) -> None:
    """As Cosmos Predict 2 does: sigma / (1 + sigma), which is no multiple of the scheduler's timesteps."""
    clock, pipeline = Clock(), Pipeline()
    pipeline.scheduler = scheduler = FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True)
    scheduler.set_timesteps(sigmas=torch.linspace(0, 1, 9, dtype=torch.float64)[1:].mul(80).flip(0).tolist())
    clock.watch(pipeline)
    values, expected = [], []
    for timestep, sigma in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
        expected.append(float(sigma / (1 + sigma)))
        for _ in range(2):  # both branches of guidance
            value = clock.read(on_device((sigma / (1 + sigma)).expand(2).to(torch.bfloat16)), "logarithm").value
        values.append(math.log(value or 0.0) / 4)
        scheduler.step(torch.zeros(1, 1, 2, 2), timestep, torch.zeros(1, 1, 2, 2))
    assert values == pytest.approx(expected, rel=0.01)
    assert len(values) == 8
    assert len(reads) == 5  # both lists; the first timestep for each branch, and one to see that they belong together


def test_logarithms_of_noise_are_read_once_too(reads: list[Tensor]) -> None:
    """Stable Video Diffusion passes those of the list; Cosmos passes them in half precision."""
    logarithms = torch.tensor([1.5, 0.5, -0.25, -1.0])
    expected = (4 * logarithms).exp().tolist()
    clock = Clock()
    given = [on_device(timestep.expand(2)) for timestep in logarithms]
    assert [clock.read(timestep, "logarithm").value for timestep in given] == pytest.approx(expected)
    assert len(reads) == 1
    clock, pipeline = Clock(), Pipeline()
    pipeline.scheduler.timesteps = logarithms
    clock.watch(pipeline)
    values = []
    for step, timestep in enumerate(logarithms):
        values.append(clock.read(on_device(timestep.expand(2).to(torch.bfloat16)), "logarithm").value)
        pipeline.scheduler.step_index = step + 1
    assert values == pytest.approx(expected, rel=0.05)
    assert len(reads) == 1 + 3


def test_a_loop_that_is_not_the_schedulers_is_read_at_each_call(reads: list[Tensor]) -> None:
    clock, pipeline = Clock(), Pipeline()
    clock.watch(pipeline)
    given = [0.9, 0.5, 0.4, 0.2]
    values = []
    for step, timestep in enumerate(given):
        values.append(clock.read(on_device(torch.full((2,), timestep))).value)
        pipeline.scheduler.step_index = step + 1
    assert values[2:] == pytest.approx(given[2:])
    assert values[1] == pytest.approx(given[1])


def test_a_scheduler_that_does_not_move_is_not_believed(reads: list[Tensor]) -> None:
    """The model is called outside its pipeline, whose scheduler stands still."""
    clock, pipeline = Clock(), Pipeline()
    clock.watch(pipeline)
    values = [clock.read(on_device(torch.full((2,), timestep))).value for timestep in (0.9, 0.5, 0.4)]
    assert values == pytest.approx([0.9, 0.5, 0.4])
