"""A plan belongs to one image: after any other image, the next is the one that a new pipeline would generate."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from checks import session_on
from tiny_pipelines import embeddings, flux_pipeline, generate, stable_diffusion
from torch import Tensor
from trial import MERGED
from with_interruption import fail_in_callback, press_keys, stop_politely
from with_offload import denoiser
from with_pipelines import become, from_image
from with_schedulers import schedule

import tokenmerge as tm
from tokenmerge.methods.linear import LinearOperator

PIPELINES: dict[str, Callable[[], Any]] = {"SD 1.5": stable_diffusion, "Flux": flux_pipeline}


def paint_over(pipe: Any) -> None:
    name = "FluxImg2ImgPipeline" if hasattr(pipe, "transformer") else "StableDiffusionImg2ImgPipeline"
    from_image(become(name, pipe))


def generate_with_heun(pipe: Any) -> None:
    usual = pipe.scheduler
    generate(schedule(pipe, "HeunDiscreteScheduler", {}), steps=3)
    pipe.scheduler = usual


GENERATED_BEFORE: dict[str, Callable[[Any], Any]] = {
    "one step": partial(generate, seed=1, steps=1),
    "one step, another prompt": partial(generate, prompt="a blue dog", steps=1),
    "another prompt": partial(generate, prompt="a blue dog", steps=3),
    "another size": partial(generate, height=96, width=160),
    "another batch": partial(generate, num_images_per_prompt=2),
    "img2img": paint_over,
    "interrupted politely": stop_politely,
    "an exception": fail_in_callback,
    "Ctrl-C": press_keys,
}


@cache
def first_of_all(on: str) -> tuple[Tensor, Tensor]:
    """An image from noise and one from an image, each by a new pipeline."""
    generated = []
    for paint in (generate_image, over):
        pipe = PIPELINES[on]()
        with tm.merged(pipe, MERGED):
            generated.append(paint(pipe))
    return generated[0], generated[1]


def generate_image(pipe: Any) -> Tensor:
    return generate(pipe, steps=4)


def over(pipe: Any) -> Tensor:
    """Begins at a low timestep, as if it went on where another image has ended."""
    name = "FluxImg2ImgPipeline" if hasattr(pipe, "transformer") else "StableDiffusionImg2ImgPipeline"
    return from_image(become(name, pipe))


CASES = [(on, before) for on in PIPELINES for before in GENERATED_BEFORE]


@pytest.mark.parametrize(("on", "before"), [*CASES, ("SD 1.5", "Heun")])
def test_the_next_image_is_as_if_it_were_the_first(on: str, before: str) -> None:
    from_noise, from_an_image = first_of_all(on)
    pipe = PIPELINES[on]()
    tm.apply(pipe, MERGED)
    generate_before = generate_with_heun if before == "Heun" else GENERATED_BEFORE[before]
    generate_before(pipe)
    assert torch.equal(generate_image(pipe), from_noise)
    generate_before(pipe)
    assert torch.equal(over(pipe), from_an_image)


@pytest.mark.parametrize("forget", [tm.Handle.remove, tm.Handle.reset])
def test_nothing_of_a_plan_stays_in_memory(forget: Callable[[tm.Handle], None]) -> None:
    pipe = stable_diffusion()
    handle = tm.apply(pipe, MERGED)
    generate(pipe)
    gc.collect()
    kept = [weakref.ref(thing) for thing in gc.get_objects() if type(thing) is LinearOperator]
    assert kept
    forget(handle)
    gc.collect()
    assert not any(operator() for operator in kept)


def test_plans_of_a_image_are_dropped_when_the_next_begins() -> None:
    """A plan for each branch of guidance, and no more, however many prompts come."""
    pipe = flux_pipeline()
    tm.apply(pipe, MERGED)
    counts = []
    for seed in range(6):
        negative = {f"negative_{name}": value for name, value in embeddings(seed=50 + seed).items()}
        generate(pipe, prompt="x" * (seed + 1), true_cfg_scale=2.0, **negative)
        groups = session_on(denoiser(pipe)).state._groups.values()
        counts.append([len(group.branches) for group in groups])
    assert counts == [[2]] * 6
