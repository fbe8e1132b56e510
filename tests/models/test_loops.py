"""Loops that people write themselves: every image is followed, however its calls come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SMALL, session_on
from tiny_models import TinyModel, made, tiny
from torch import Tensor, nn

import tokenmerge as tm

CONFIG = tm.ToMA(ratio=0.75, tile=(2, 2), correction=tm.FullSteps(every=3, within=None), **SMALL)
MODELS = [tiny("pixart"), tiny("sd15"), tiny("flux")]
TIMESTEPS = [1000.0 - 20 * step for step in range(9)]


def call(model: nn.Module, what: TinyModel, image: int, step: int, timestep: float, remade: bool = False) -> Tensor:
    """One call for an image whose noise changes a little from step to step."""
    inputs: dict[str, Any] = what.inputs((image,), what.grid(8, 8))
    first = "sample" if "sample" in inputs else "hidden_states"
    moved = torch.randn(inputs[first].shape, generator=torch.Generator().manual_seed(100 * image + step))
    inputs[first] = inputs[first] + 0.05 * moved
    text = what.inputs((1,), what.grid(8, 8))["encoder_hidden_states"]  # the same for every image
    inputs["encoder_hidden_states"] = text.clone() if remade else text
    inputs["timestep"] = torch.full_like(inputs["timestep"], timestep)
    with torch.no_grad():
        output: Tensor = model(**inputs, return_dict=False)[0]
    return output


def generate(model: nn.Module, what: TinyModel, image: int = 1, remade: bool = False) -> list[Tensor]:
    return [call(model, what, image, step, timestep, remade) for step, timestep in enumerate(TIMESTEPS)]


@pytest.mark.parametrize("what", MODELS, ids=str)
def test_an_embedding_made_again_at_each_step_changes_nothing(what: TinyModel) -> None:
    model = made(what.build)
    with tm.merged(model, CONFIG):
        expected = generate(model, what)
    with tm.merged(model, CONFIG):
        found = generate(model, what, remade=True)
        assert session_on(model).full_calls == 3
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("what", MODELS, ids=str)
def test_images_in_turns_are_what_each_is_alone(what: TinyModel) -> None:
    """With the same text and the same timesteps: no image shows the ghost of another."""
    model = made(what.build)
    alone = []
    for image in (1, 2):
        with tm.merged(model, CONFIG):
            alone.append(generate(model, what, image))
    with tm.merged(model, CONFIG):
        turns = [
            [call(model, what, image, step, timestep) for image in (1, 2)] for step, timestep in enumerate(TIMESTEPS)
        ]
    for step, outputs in enumerate(turns):
        for number, output in enumerate(outputs):
            torch.testing.assert_close(output, alone[number][step], rtol=0, atol=1e-6)


@pytest.mark.parametrize("what", MODELS, ids=str)
def test_samplers_with_two_calls_a_step_have_as_many_full_ones(what: TinyModel) -> None:
    """Heun: each timestep but the first twice. Calls count, not timesteps."""
    model = made(what.build)
    heun = [1000.0, *(timestep for timestep in (980.0, 960.0, 940.0, 920.0) for _ in range(2))]
    with tm.merged(model, CONFIG):
        for step, timestep in enumerate(heun):
            call(model, what, 1, step, timestep)
        assert session_on(model).full_calls == 3  # of nine calls, as of nine steps


@pytest.mark.parametrize("what", MODELS, ids=str)
def test_a_loop_may_say_which_image_a_call_belongs_to(what: TinyModel) -> None:
    """Two images with the very same noise, text and timesteps at their first step, which nothing else tells apart."""
    model = made(what.build)
    with tm.merged(model, CONFIG):
        alone = generate(model, what)
    with tm.merged(model, CONFIG) as handle:
        for _ in range(2):
            turns: dict[str, list[Tensor]] = {"left": [], "right": []}
            for step, timestep in enumerate(TIMESTEPS):
                for name, outputs in turns.items():
                    with handle.image(name):
                        outputs.append(call(model, what, 1, step, timestep))
            assert session_on(model).steps.schedule.number == len(TIMESTEPS) - 1
            for outputs in turns.values():
                assert all(torch.equal(one, other) for one, other in zip(outputs, alone, strict=True))
            handle.reset()


def test_churn_goes_on_with_the_image() -> None:
    what = MODELS[0]
    model = made(what.build)
    churned = [1000.0, 940.0, 960.0, 900.0, 920.0, 860.0, 880.0, 820.0, 840.0]
    with tm.merged(model, CONFIG):
        for step, timestep in enumerate(churned):
            call(model, what, 1, step, timestep)
        assert session_on(model).full_calls == 3
        assert session_on(model).steps.schedule.number == 8  # one image, not five


def test_a_restart_costs_one_full_step_and_is_corrected_after_it() -> None:
    """Restart samplers add much noise and go back several steps: what was recorded there no longer fits."""
    what = MODELS[0]
    model = made(what.build)
    timesteps = [*range(1000, 860, -20), 960, 940, 920, 900]  # seven steps, then back by four
    full = []
    with tm.merged(model, CONFIG):
        for step, timestep in enumerate(timesteps):
            call(model, what, 1, step, float(timestep))
            full.append(session_on(model).full_calls)
    assert full == [1, 1, 1, 2, 2, 2, 3, 4, 4, 4, 5]  # two of these at the restart: its first, and three steps on
