"""Hundreds of generations in one process: memory stays flat, and every plan is forgotten when it should be."""

from __future__ import annotations

import gc
import itertools
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
)
from tiny_models import made
from tiny_models.unets import sd15_unet

import tokenmerge as tm
from tokenmerge.config.interfaces import Operators
from tokenmerge.engine.session import session_of

GENERATIONS = 300
SETTLED = 10  # generations after which memory has to stay as it is
SMALL: dict[str, Any] = {"min_tokens": 16, "skip_blocks": 0}
METHODS: list[tm.MergeConfig | None] = [
    tm.ToMA(ratio=0.75, tile=(2, 2), select_every=(2, 1), **SMALL),
    tm.TileMean(correction=tm.FullSteps(every=2), **SMALL),
    tm.SampledKeys(**SMALL),
    tm.ToMA(scope="stack", **SMALL),
    tm.ToMA(region="stripe+global", proportional=False, **SMALL),
    tm.ToMeSD(max_downsample=2, **SMALL),
    tm.ToFu(**SMALL),
    tm.ToDo(**SMALL),
    tm.LowerBound(scope="block", **SMALL),
    None,
]
SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SCHEDULERS: list[Any] = [
    DDIMScheduler,
    EulerDiscreteScheduler,
    EulerAncestralDiscreteScheduler,
    DPMSolverMultistepScheduler,
    HeunDiscreteScheduler,
    partial(PNDMScheduler, skip_prk_steps=True),  # as Stable Diffusion sets it; it would need more steps otherwise
]
SIZES = [(64, 64), (96, 64), (64, 128), (72, 104), (128, 128)]  # pixels
BATCHES = [1, 2, 3]


@dataclass(frozen=True)
class Memory:
    """What is alive after a generation."""

    resident: int  # bytes of the process
    tensors: int
    tensor_bytes: int


def memory() -> Memory:
    gc.collect()
    # By type: asking an object for its class may run its code.
    alive = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    resident = psutil.Process().memory_info().rss
    return Memory(resident, len(alive), sum(tensor.untyped_storage().nbytes() for tensor in alive))


@pytest.fixture(scope="module")
def pipe() -> StableDiffusionPipeline:
    from tokenmerge.runtime.tiny_random import build_tiny_random

    whole = build_tiny_random()
    whole.set_progress_bar_config(disable=True)
    whole.unet = made(lambda: _unet_for(whole))
    return whole


def _unet_for(pipe: StableDiffusionPipeline) -> torch.nn.Module:
    """The smallest UNet that takes this pipeline's text."""
    from diffusers import UNet2DConditionModel

    config = {**sd15_unet().config, "cross_attention_dim": pipe.text_encoder.config.hidden_size}
    return UNet2DConditionModel.from_config(config)


def generate(pipe: StableDiffusionPipeline, number: int) -> None:
    """One generation, unlike the one before it in size, batch, method and scheduler."""
    config = METHODS[number % len(METHODS)]
    pipe.scheduler = SCHEDULERS[number % len(SCHEDULERS)](**SCHEDULE)
    width, height = SIZES[number % len(SIZES)]
    prompts = [f"image {number} {copy}" for copy in range(BATCHES[number % len(BATCHES)])]
    with tm.merged(pipe, config) if config is not None else nullcontext():
        images = pipe(prompts, width=width, height=height, num_inference_steps=3, output_type="pt").images
    assert images.shape == (len(prompts), 3, height, width)
    assert images.isfinite().all()


@pytest.mark.long
def test_memory_is_flat_over_300_generations(pipe: StableDiffusionPipeline) -> None:
    """Orders of tokens are kept for grids seen before: few and small enough not to matter."""
    seen: dict[int, Memory] = {}
    for number in range(1, GENERATIONS + 1):
        generate(pipe, number)
        if number % SETTLED == 0:
            seen[number] = memory()
            print(f"after {number}: {seen[number]}")
    first, last = seen[SETTLED], seen[GENERATIONS]
    every_grid_seen = seen[len(METHODS) * len(SIZES)]
    assert last.tensors <= every_grid_seen.tensors
    assert max(each.tensor_bytes for each in seen.values()) - first.tensor_bytes < 2**20
    assert last.resident - first.resident < 32 * 2**20


def test_nothing_is_left_of_a_plan_that_was_removed(pipe: StableDiffusionPipeline) -> None:
    for number in range(len(METHODS)):
        generate(pipe, number)  # every cache has what these sizes need
    before = memory()
    for number, _ in itertools.product(range(len(METHODS)), range(2)):
        generate(pipe, number)
        assert session_of(pipe.unet) is None
    assert memory().tensors == before.tensors


def test_a_plan_goes_when_the_size_changes_when_it_is_reset_and_when_it_is_removed(
    pipe: StableDiffusionPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators are the large part of a plan: they are followed by weak references from when they are made."""
    made_operators: list[weakref.ref[Operators]] = []
    plan = tm.ToMA.plan

    def noted(self: tm.ToMA, *args: Any) -> Operators:
        operators = plan(self, *args)
        made_operators.append(weakref.ref(operators))
        return operators

    monkeypatch.setattr(tm.ToMA, "plan", noted)

    def alive() -> int:
        gc.collect()
        return sum(reference() is not None for reference in made_operators)

    def generate_at(side: int) -> None:
        pipe("a cat", width=side, height=side, num_inference_steps=2, output_type="pt")

    handle = tm.apply(pipe, tm.ToMA(ratio=0.75, tile=(2, 2), **SMALL))
    generate_at(64)
    one = alive()
    assert one > 0
    generate_at(128)
    assert alive() == one  # those of the larger image; none of the smaller one's is left
    handle.reset()
    assert alive() == 0
    generate_at(64)
    assert alive() == one
    handle.remove()
    assert alive() == 0
