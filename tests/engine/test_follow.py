"""Which image, step and guidance branch a call belongs to: no model is built here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tokenmerge.engine.clock import Clock, Reading
from tokenmerge.engine.follow import MOST_BRANCHES, Follower

HERE = "the same batch, size, dtype and device"
TEXT = torch.zeros(1, 4)


def noise(seed: int) -> Tensor:
    return torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))


class Loop:
    """Calls as a sampling loop makes them; each is a new "image", a new "step", or "goes on" in the step there is."""

    def __init__(self) -> None:
        self.follower = Follower()
        self.branches: list[int] = []

    def call(self, timestep: float | None, text: Any = TEXT, inputs: Tensor | None = None, shape: Any = HERE) -> str:
        position = self.follower.observe(Reading(timestep), shape, (text,), noise(0) if inputs is None else inputs)
        self.branches.append(position.branch)
        return "image" if position.new_image else "step" if position.new_step else "goes on"


def test_falling_timesteps_are_the_steps_of_one_image() -> None:
    loop = Loop()
    assert [loop.call(timestep) for timestep in (900.0, 800.0, 700.0)] == ["image", "step", "step"]


def test_a_larger_timestep_with_other_noise_begins_another_image() -> None:
    loop = Loop()
    assert [loop.call(timestep) for timestep in (900.0, 800.0)] == ["image", "step"]
    assert [loop.call(timestep, inputs=noise(1)) for timestep in (900.0, 800.0)] == ["image", "step"]


def test_a_timestep_that_rises_a_little_goes_on_with_the_image() -> None:
    """Heun with churn adds some noise before each step, so that timesteps go up and down."""
    loop = Loop()
    assert loop.call(900.0, inputs=noise(0)) == "image"
    for step, timestep in enumerate((800.0, 850.0, 700.0, 750.0), start=1):
        assert loop.call(timestep, inputs=noise(0) + 0.7 * noise(step)) == "step"


def test_a_list_of_timesteps_tells_steps_where_everything_else_is_made_anew() -> None:
    """Loops with guidance in one call often join labels, and copy the image, at each step."""
    clock, follower = Clock(), Follower()
    for image in range(2):
        for number, timestep in enumerate(torch.linspace(900, 100, 5)):
            labels = torch.cat([TEXT, TEXT + 1])
            reading = clock.read(timestep.expand(2))
            assert reading.schedule is not None
            position = follower.observe(reading, HERE, (labels,), noise(10 * image + number))
            assert (position.new_image, position.new_step) == (number == 0, number > 0)


def test_two_calls_at_one_timestep_are_two_steps() -> None:
    """Heun's second call is at the timestep of the next step, on a slightly different input."""
    loop = Loop()
    calls = [(900.0, 0), (800.0, 1), (800.0, 2), (700.0, 3), (700.0, 4)]
    found = [loop.call(timestep, inputs=noise(0) + 0.1 * noise(seed)) for timestep, seed in calls]
    assert found == ["image", "step", "step", "step", "step"]


def test_each_text_of_the_first_step_is_a_guidance_branch() -> None:
    loop = Loop()
    texts = torch.zeros(1, 4), torch.ones(1, 4)
    found = [loop.call(timestep, text) for timestep in (900.0, 800.0, 800.0) for text in texts]
    assert loop.branches == [0, 1] * 3
    assert found == ["image", "goes on", "step", "goes on", "step", "goes on"]


def test_guidance_branches_that_nothing_tells_apart_are_still_two() -> None:
    """The same input twice at each timestep: nothing else would call a model so."""
    loop = Loop()
    for step, timestep in enumerate((900.0, 800.0, 700.0)):
        for _ in range(2):
            loop.call(timestep, None, noise(0) + 0.1 * noise(step))
    assert loop.branches == [0, 1] * 3


def test_an_embedding_that_is_made_again_at_each_step_is_the_same_text() -> None:
    loop = Loop()
    assert [loop.call(timestep, TEXT.clone()) for timestep in (900.0, 800.0, 700.0)] == ["image", "step", "step"]


def test_an_embedding_that_is_changed_in_place_is_another_text() -> None:
    loop, text = Loop(), torch.zeros(1, 4)
    loop.call(900.0, text)
    text += 1
    assert loop.call(800.0, text) == "image"


def test_images_made_in_turns_are_followed_each() -> None:
    """The same text and timesteps: only their noise tells them apart."""
    loop = Loop()
    found = [
        loop.call(timestep, inputs=noise(image) + 0.2 * noise(10 + step))
        for step, timestep in enumerate((900.0, 800.0, 700.0))
        for image in (0, 1, 2)
    ]
    assert loop.branches == [0, 1, 2] * 3
    assert found == ["image", "goes on", "goes on"] + ["step", "goes on", "goes on"] * 2


@pytest.mark.parametrize("begins_at", [900.0, 800.0, 300.0])
def test_another_text_is_another_image(begins_at: float) -> None:
    """Timesteps alone do not tell: an image made after another may begin where that has ended, or below."""
    loop, other = Loop(), torch.ones(1, 4)
    loop.call(900.0)
    loop.call(800.0)
    assert [loop.call(begins_at, other), loop.call(begins_at - 1, other)] == ["image", "step"]


def test_branches_do_not_grow_without_end() -> None:
    loop = Loop()
    for number in range(50):
        loop.call(999.0, torch.full((1, 4), float(number)))
    assert max(loop.branches) < MOST_BRANCHES


def test_another_shape_is_another_image() -> None:
    loop = Loop()
    loop.call(900.0)
    assert loop.call(800.0, shape="another batch") == "image"


def test_calls_without_a_timestep_count_as_steps() -> None:
    loop = Loop()
    assert [loop.call(None) for _ in range(3)] == ["image", "step", "step"]


def test_progress_is_how_much_of_the_noise_is_removed() -> None:
    loop = Loop()
    loop.call(1000.0)
    assert loop.follower.progress == 0
    loop.call(400.0)
    assert loop.follower.progress == pytest.approx(0.6)
    loop.call(None)
    assert loop.follower.progress is None


def test_a_host_that_names_branches_is_taken_at_its_word() -> None:
    """ComfyUI does: its text embeddings are other tensors at each call, and areas have sizes of their own."""
    follower = Follower()
    calls = [(1.0, "text"), (1.0, "none"), (0.8, "none"), (0.8, "text"), (0.6, ("text", "none"))]
    positions = [follower.observe_named(timestep, branch) for timestep, branch in calls]
    assert [position.branch for position in positions] == [0, 1, 1, 0, 2]
    assert [position.new_image for position in positions] == [True, False, False, False, False]
    assert [position.new_step for position in positions] == [False, False, True, False, True]
    assert follower.progress == pytest.approx(0.4)


def test_a_named_branch_that_comes_twice_at_one_timestep_is_at_its_next_step() -> None:
    follower = Follower()
    assert [follower.observe_named(0.5, "text").new_step for _ in range(3)] == [False, True, True]


def test_named_branches_are_forgotten_with_the_image() -> None:
    follower = Follower()
    follower.observe_named(0.5, "text")
    follower.forget()
    assert follower.observe_named(0.9, "none").new_image
    assert follower.progress == 0
