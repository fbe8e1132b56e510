"""What schedulers of diffusers do with a model's outputs."""

from __future__ import annotations

import copy
from typing import Any

import diffusers
import pytest
import torch

from tokenmerge.runtime.sampler import SamplerSteps


class Holder:
    """As much of a pipeline as is read."""

    def __init__(self, scheduler: Any, steps: int = 8) -> None:
        scheduler.set_timesteps(steps)
        self.scheduler = scheduler


def test_the_effects_of_euler_are_its_steps() -> None:
    pipeline = Holder(diffusers.FlowMatchEulerDiscreteScheduler())
    count, effects = SamplerSteps(pipeline)(1000.0) or (0, None)
    assert count == 8
    sigmas = pipeline.scheduler.sigmas
    assert effects == pytest.approx((sigmas[1:] - sigmas[:-1]).tolist())


def test_timesteps_may_reach_the_model_as_fractions_and_rounded() -> None:
    pipeline = Holder(diffusers.FlowMatchEulerDiscreteScheduler())
    rounded = float((pipeline.scheduler.timesteps[3] / 1000).bfloat16())
    count, effects = SamplerSteps(pipeline)(rounded) or (0, None)
    assert count == 5  # an image that begins with another
    assert effects is not None
    assert len(effects) == 5


def test_a_scheduler_is_left_as_it_is_and_so_is_randomness() -> None:
    for scheduler in (diffusers.DPMSolverMultistepScheduler(), diffusers.EulerAncestralDiscreteScheduler()):
        pipeline = Holder(scheduler)
        before, randomness = copy.deepcopy(vars(scheduler)), torch.random.get_rng_state()
        SamplerSteps(pipeline)(float(scheduler.timesteps[0]))
        assert str(vars(scheduler)) == str(before)
        assert torch.equal(torch.random.get_rng_state(), randomness)


@pytest.mark.parametrize("kind", ["EulerAncestralDiscreteScheduler", "LCMScheduler", "DDPMScheduler"])
def test_samplers_that_add_noise_count_as_unknown(kind: str) -> None:
    pipeline = Holder(getattr(diffusers, kind)())
    assert SamplerSteps(pipeline)(float(pipeline.scheduler.timesteps[0])) is None


def test_nothing_is_known_about_two_calls_a_step_or_another_timestep() -> None:
    heun = Holder(diffusers.HeunDiscreteScheduler())
    assert SamplerSteps(heun)(float(heun.scheduler.timesteps[0])) is None
    euler = Holder(diffusers.FlowMatchEulerDiscreteScheduler())
    assert SamplerSteps(euler)(123456.0) is None
    assert SamplerSteps(euler)(None) is None
    assert SamplerSteps(Holder.__new__(Holder))(1000.0) is None  # the pipeline is gone, or has no scheduler
