"""Two pipelines at once: on one model, in turns, and in two threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any

import torch
from row import Row, as_it_is
from tiny_pipelines import flux_pipeline, generate, quiet, stable_diffusion
from torch import Tensor


@dataclass
class Pair:
    """Two pipelines, on one denoiser or each on its own."""

    one: Any
    other: Any


def with_one_model() -> Pair:
    pipe = stable_diffusion()
    return Pair(pipe, quiet(type(pipe).from_pipe(pipe)))


def with_two_models(build: Callable[[], Any]) -> Pair:
    return Pair(build(), build())


def the_one(pair: Pair) -> list[Any]:
    return [pair.one]


def both(pair: Pair) -> list[Any]:
    return [pair.one, pair.other]


def generate_one(pair: Pair) -> Tensor:
    return generate(pair.one)


def after_one_another(pair: Pair) -> Tensor:
    return torch.cat([generate(pair.one), generate(pair.other, prompt="blue dog", steps=3), generate(pair.one, seed=1)])


def in_turns(pair: Pair) -> Tensor:
    """At the end of each step of the one, an image of the other."""
    others = []

    def generate_other(*_: Any) -> dict[str, Any]:
        others.append(generate(pair.other, prompt="blue dog", seed=3, steps=3))
        return {}

    generated = generate(pair.one, steps=3, callback_on_step_end=generate_other)
    return torch.cat([generated, *others])


def in_threads(pair: Pair) -> Tensor:
    """Step by step side by side: each waits for the other at the end of every step."""
    barrier = Barrier(2, timeout=60)

    def wait(*_: Any) -> dict[str, Any]:
        barrier.wait()
        return {}

    with ThreadPoolExecutor(2) as threads:
        generated = [
            threads.submit(generate, pipe, prompt, seed, 3, callback_on_step_end=wait)
            for pipe, prompt, seed in ((pair.one, "red cat", 1), (pair.other, "blue dog", 2))
        ]
        images = [image.result() for image in generated]
    # What a thread generates is what it would generate alone.
    assert torch.equal(images[0], generate(pair.one, "red cat", 1, 3))
    assert torch.equal(images[1], generate(pair.other, "blue dog", 2, 3))
    return torch.cat(images)


def row(name: str, on: str, build: Callable[[], Pair], generate: Callable[[Pair], Tensor], merged: Any) -> Row:
    return Row("at once", name, on, build, as_it_is, generate, generate_one, merged)


ROWS = [
    row("two pipelines on one UNet", "SD 1.5", with_one_model, after_one_another, the_one),
    row("two pipelines on one UNet, in turns", "SD 1.5", with_one_model, in_turns, the_one),
    row("two threads", "SD 1.5", partial(with_two_models, stable_diffusion), in_threads, both),
    row("two threads", "Flux", partial(with_two_models, flux_pipeline), in_threads, both),
]
