"""A plan belongs to one picture: whatever was drawn before, the next is the one that a new pipeline would draw."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from checks import session_on
from tiny_pipelines import draw, embeddings, flux_pipeline, stable_diffusion
from torch import Tensor
from trial import MERGED
from with_interruption import fail_in_callback, press_keys, stop_politely
from with_offload import denoiser
from with_pipelines import become, from_picture
from with_schedulers import schedule

import tokenmerge as tm
from tokenmerge.methods.linear import LinearOperator

PIPELINES: dict[str, Callable[[], Any]] = {"SD 1.5": stable_diffusion, "Flux": flux_pipeline}


def paint_over(pipe: Any) -> None:
    name = "FluxImg2ImgPipeline" if hasattr(pipe, "transformer") else "StableDiffusionImg2ImgPipeline"
    from_picture(become(name, pipe))


def draw_with_heun(pipe: Any) -> None:
    usual = pipe.scheduler
    draw(schedule(pipe, "HeunDiscreteScheduler", {}), steps=3)
    pipe.scheduler = usual


DRAWN_BEFORE: dict[str, Callable[[Any], Any]] = {
    "one step": partial(draw, seed=1, steps=1),
    "one step, another prompt": partial(draw, prompt="a blue dog", steps=1),
    "another prompt": partial(draw, prompt="a blue dog", steps=3),
    "another size": partial(draw, height=96, width=160),
    "another batch": partial(draw, num_images_per_prompt=2),
    "img2img": paint_over,
    "interrupted politely": stop_politely,
    "an exception": fail_in_callback,
    "Ctrl-C": press_keys,
}


@cache
def first_of_all(on: str) -> tuple[Tensor, Tensor]:
    """A picture from noise and one from a picture, each by a new pipeline."""
    drawn = []
    for paint in (picture, over):
        pipe = PIPELINES[on]()
        with tm.merged(pipe, MERGED):
            drawn.append(paint(pipe))
    return drawn[0], drawn[1]


def picture(pipe: Any) -> Tensor:
    return draw(pipe, steps=4)


def over(pipe: Any) -> Tensor:
    """Begins at a low timestep, as if it went on where another picture has ended."""
    name = "FluxImg2ImgPipeline" if hasattr(pipe, "transformer") else "StableDiffusionImg2ImgPipeline"
    return from_picture(become(name, pipe))


CASES = [(on, before) for on in PIPELINES for before in DRAWN_BEFORE]


@pytest.mark.parametrize(("on", "before"), [*CASES, ("SD 1.5", "Heun")])
def test_the_next_picture_is_as_if_it_were_the_first(on: str, before: str) -> None:
    from_noise, from_a_picture = first_of_all(on)
    pipe = PIPELINES[on]()
    tm.apply(pipe, MERGED)
    draw_before = draw_with_heun if before == "Heun" else DRAWN_BEFORE[before]
    draw_before(pipe)
    assert torch.equal(picture(pipe), from_noise)
    draw_before(pipe)
    assert torch.equal(over(pipe), from_a_picture)


@pytest.mark.parametrize("forget", [tm.Handle.remove, tm.Handle.reset])
def test_nothing_of_a_plan_stays_in_memory(forget: Callable[[tm.Handle], None]) -> None:
    pipe = stable_diffusion()
    handle = tm.apply(pipe, MERGED)
    draw(pipe)
    gc.collect()
    kept = [weakref.ref(thing) for thing in gc.get_objects() if type(thing) is LinearOperator]
    assert kept
    forget(handle)
    gc.collect()
    assert not any(operator() for operator in kept)


def test_plans_of_a_picture_are_dropped_when_the_next_begins() -> None:
    """A plan for each branch of guidance, and no more, however many prompts come."""
    pipe = flux_pipeline()
    tm.apply(pipe, MERGED)
    counts = []
    for seed in range(6):
        negative = {f"negative_{name}": value for name, value in embeddings(seed=50 + seed).items()}
        draw(pipe, prompt="x" * (seed + 1), true_cfg_scale=2.0, **negative)
        groups = session_on(denoiser(pipe)).state._groups.values()
        counts.append([len(group.branches) for group in groups])
    assert counts == [[2]] * 6
