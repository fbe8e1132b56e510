"""What is found about the sampler of a loop of one's own: no model of the library is built here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.engine.own_loop import OwnLoop
from tokenmerge.engine.skipped_steps import FEWEST_UNCORRECTED
from tokenmerge.models import FAMILIES
from tokenmerge.models.base import Family, Part, Stack, blocks_of, patch_grid

STEPS = 16
SHIFTS = (1.0, 3.0, 6.0)


def levels(steps: int, shift: float = 1.0) -> list[float]:
    """The noise left at each step, and 0."""
    even = [1 - step / steps for step in range(steps + 1)]
    return [shift * each / (1 + (shift - 1) * each) for each in even]


def field(image: Tensor, left: float) -> Tensor:
    """The flow of a normal distribution of images to one of noise: bent, and smooth."""
    spread = torch.linspace(0.1, 1.5, image[0].numel()).view(image.shape[1:]) ** 2
    centre = torch.linspace(-1, 1, image[0].numel()).view(image.shape[1:])
    kept = 1 - left
    clean = centre + kept * spread / (kept**2 * spread + left**2) * (image - kept * centre)
    return (image - clean) / left if left else image


def start(samples: int = 2) -> Tensor:
    return torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def followed(move: Callable[[Tensor, float, float], Tensor], shift: float = 1.0, unit: float = 1.0) -> OwnLoop:
    """A loop that calls `field`, and moves the image as it likes; followed up to its last step."""
    loop, image = OwnLoop(STEPS), start()
    for left, after in pairwise(levels(STEPS, shift)):
        loop.begin_step(unit * left, image)
        loop.take(field(image, left))
        image = move(image, left, after)
    return loop


def euler(image: Tensor, left: float, after: float) -> Tensor:
    return image + (after - left) * field(image, left)


@pytest.mark.parametrize("unit", [1.0, 1000.0])
@pytest.mark.parametrize("shift", SHIFTS)
def test_steps_along_the_outputs_have_the_effect_of_their_length(shift: float, unit: float) -> None:
    timeline = followed(euler, shift, unit).timeline
    assert timeline is not None
    expected = [unit * (left - after) for left, after in pairwise(levels(STEPS, shift))]
    assert timeline.effects == pytest.approx(expected, rel=1e-4)
    assert timeline.corrects


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_effect_of_a_step_is_known_when_its_output_is(shift: float) -> None:
    loop, image, times = OwnLoop(STEPS), start(), levels(STEPS, shift)
    for number, (left, after) in enumerate(pairwise(times)):
        timeline = loop.begin_step(left, image)
        assert timeline is not None
        if number:
            found, expected = timeline.effect_of(number - 1, number), times[number - 1] - left
            assert found == pytest.approx(expected / (left - after), rel=1e-3)
        loop.take(field(image, left))
        image = euler(image, left, after)


def test_guidance_in_one_call_and_in_two_is_seen_through() -> None:
    for at_once in (False, True):
        loop, image = OwnLoop(STEPS), start(1)
        for left, after in pairwise(levels(STEPS)):
            timeline = loop.begin_step(left, torch.cat([image, image]) if at_once else image)
            with_text, without = field(image, left), field(image.sin(), left)
            for output in [torch.cat([with_text, without])] if at_once else [with_text, without]:
                loop.take(output)
            image = image + (after - left) * (without + 4.5 * (with_text - without))
        assert timeline is not None
        assert timeline.effects is not None


def ddim(image: Tensor, left: float, after: float) -> Tensor:
    angles = [each * 1.5 for each in (left, after)]
    noise = field(image, left)
    clean = (image - math.sin(angles[0]) * noise) / math.cos(angles[0])
    return math.cos(angles[1]) * clean + math.sin(angles[1]) * noise


def test_steps_that_go_elsewhere_are_predicted_and_not_corrected() -> None:
    timeline = followed(ddim).timeline
    assert timeline is not None
    assert (timeline.count, timeline.effects, timeline.corrects) == (STEPS, None, False)


def test_the_number_of_steps_is_no_help_where_noise_is_added() -> None:
    generator = torch.Generator().manual_seed(0)

    def ancestral(image: Tensor, left: float, after: float) -> Tensor:
        return euler(image, left, after) + 0.2 * torch.randn(image.shape, generator=generator)

    assert followed(ancestral).timeline is None


def test_a_loop_that_calls_twice_a_step_has_twice_as_many_calls() -> None:
    loop, image = OwnLoop(STEPS), start()
    for left, after in list(pairwise(levels(STEPS)))[:-1]:
        loop.begin_step(left, image)
        first = field(image, left)
        loop.take(first)
        tried = image + (after - left) * first
        loop.begin_step(after, tried)
        second = field(tried, after)
        loop.take(second)
        image = image + (after - left) / 2 * (first + second)
    assert loop.timeline is not None
    assert loop.timeline.count == 2 * STEPS - 1
    assert not loop.timeline.corrects


def test_without_a_correction_short_images_are_as_if_nobody_had_counted() -> None:
    loop, image = OwnLoop(FEWEST_UNCORRECTED - 1), start()
    for left, after in pairwise(levels(FEWEST_UNCORRECTED - 1)):
        loop.begin_step(left, image)
        loop.take(field(image, left))
        image = ddim(image, left, after)
    assert loop.timeline is None


def test_outputs_of_another_form_say_nothing() -> None:
    loop = OwnLoop(STEPS)
    for number in range(3):
        timeline = loop.begin_step(1 - number / STEPS, start())
        loop.take(torch.zeros(2, 5))
    assert timeline is not None
    assert timeline.effects is None


class Attention(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return 0 * tokens


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.attention(tokens)


class BentFlow(nn.Module):
    """Returns `field`, and counts how often it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.runs = nn.ModuleList([Block()]), 0

    def forward(self, image: Tensor, time: Tensor, label: Tensor) -> Tensor:
        self.blocks[0](image.flatten(2).mT)
        self.runs += 1
        return field(image + label.view(-1, 1, 1, 1), float(time.max()))


class BentFlowFamily(Family):
    name = class_name = "BentFlow"
    latent, timestep, conditions = "image", "time", ("label",)

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "blocks", Part(("self",), "attention"))
        return [Stack("blocks", "blocks", model, partial(patch_grid, 1, name="image"), blocks)]


@pytest.fixture
def flow() -> Iterator[BentFlow]:
    tm.register_family(BentFlowFamily())
    yield BentFlow()
    FAMILIES.pop(0)


@torch.no_grad()
def made(model: BentFlow, steps: int) -> Tensor:
    """Guidance in one call, whose labels are made again at each step, and timesteps that are views of a list."""
    image, times = start(1), torch.tensor(levels(steps, 3.0))
    for left, after in pairwise(times):
        labels = torch.cat([torch.zeros(1), torch.full((1,), 0.3)])
        one, other = model(torch.cat([image, image]), left.expand(2), labels).chunk(2)
        image = image + (after - left) * (one + 2 * (other - one))
    return image


@pytest.mark.parametrize("steps", [20, 50])
def test_a_loop_that_says_how_many_steps_it_has_is_corrected(flow: BentFlow, steps: int) -> None:
    exact, fewer = made(flow, steps), made(flow, steps // 2)
    flow.runs = 0
    with tm.merged(flow, tm.SkipSteps(step_speedup=2.0), steps=steps):
        skipped = made(flow, steps)
    assert flow.runs == steps // 2
    assert (skipped - exact).norm() < 0.3 * (fewer - exact).norm()
