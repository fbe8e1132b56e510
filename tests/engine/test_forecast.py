"""Forecasts of skipped steps, on samplers of diffusers and outputs that are known in closed form."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from tokenmerge.engine.forecast import Forecast, Point, interpolation, prediction
from tokenmerge.engine.schedule import Timeline
from tokenmerge.engine.skipped_steps import computed_steps
from tokenmerge.runtime.sampler import SamplerSteps


class Holder:
    """As much of a pipeline as is read."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler


def parabola(timestep: float) -> Tensor:
    time = timestep / 1000
    return torch.tensor([0.3 - 1.2 * time + 0.8 * time**2, 2.0 * time**2 - 0.5], dtype=torch.float64).view(1, 2, 1, 1)


def sample(scheduler: Any, steps: int, speedup: float, corrected: bool = True) -> Tensor:
    """The final sample where the model's output is a parabola over the timestep."""
    scheduler.set_timesteps(steps)
    times = [float(time) for time in scheduler.timesteps]
    pipeline = Holder(scheduler)
    found = SamplerSteps(pipeline)(times[0])
    assert found is not None
    timeline = Timeline(*found)
    computed = computed_steps(timeline.count, speedup, timeline.last)
    forecast, latents = Forecast(), torch.ones(1, 2, 1, 1, dtype=torch.float64)
    for number, time in enumerate(times):
        at = Point(number, time)
        if number in computed:
            output = parabola(time)
            instead = forecast.correct(output, at, timeline if corrected else None)
            output = output if instead is None else instead
        else:
            output = forecast.predict(at)
        latents = scheduler.step(output, scheduler.timesteps[number], latents, return_dict=False)[0]
    return latents


SCHEDULERS = [
    lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    lambda: diffusers.DDIMScheduler(clip_sample=False, prediction_type="v_prediction", timestep_spacing="trailing"),
    lambda: diffusers.DPMSolverMultistepScheduler(),
    lambda: diffusers.UniPCMultistepScheduler(),
]


@pytest.mark.parametrize("make", SCHEDULERS)
@pytest.mark.parametrize(("steps", "speedup"), [(20, 2.0), (10, 1.5), (50, 3.0)])
def test_the_correction_makes_skipped_steps_of_a_parabola_exact(make: Any, steps: int, speedup: float) -> None:
    exact = sample(make(), steps, speedup=1.0)
    predicted = sample(make(), steps, speedup, corrected=False)
    corrected = sample(make(), steps, speedup)
    far, near = (float((image - exact).abs().max()) for image in (predicted, corrected))
    assert far > 1e-3
    # A negligible last step is forecast and has none behind it to be corrected by.
    assert near < far / 10


def test_a_line_through_two_points_is_followed_a_quarter_of_the_way_at_most() -> None:
    points = [Point(5, 500.0), Point(4, 600.0)]
    assert prediction(points, Point(6, 480.0)) == pytest.approx((1.2, -0.2))
    assert prediction(points, Point(8, 200.0)) == (1.25, -0.25)


def test_equal_timesteps_count_as_steps() -> None:
    points = [Point(5, 0.75), Point(4, 0.75)]  # rounded to the same
    assert interpolation(points, Point(6, 0.74)) == (2.0, -1.0)


def test_one_image_stores_two_outputs_and_copies_them() -> None:
    forecast = Forecast()
    outputs = [torch.full((1, 2), float(number)) for number in range(4)]
    for number, output in enumerate(outputs):
        forecast.correct(output, Point(number, 1000.0 - number), None)
        output.zero_()
    assert [float(output[0, 0]) for output in forecast.outputs] == [3.0, 2.0]


def test_half_precision_is_added_up_in_float32() -> None:
    forecast = Forecast()
    for number, value in enumerate((2.0, 4.0)):
        forecast.correct(torch.full((1, 2), value, dtype=torch.bfloat16), Point(number, 1000.0 - number), None)
    predicted = forecast.predict(Point(2, 998.0))
    assert predicted.dtype == torch.bfloat16
    assert predicted.tolist() == [[4.5, 4.5]]


def test_a_step_that_would_carry_many_times_its_output_carries_nothing() -> None:
    forecast = Forecast()
    for number in range(2):
        forecast.correct(torch.rand(1, 2), Point(number, 1000.0 - 100 * number), None)
    forecast.predict(Point(2, 800.0))
    assert forecast.correct(torch.rand(1, 2), Point(3, 700.0), Timeline(4, (1.0, 1.0, 1.0, 1e-4))) is None
