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
from tiny_pipelines import draw, flux_pipeline, quiet, stable_diffusion
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


def draw_one(pair: Pair) -> Tensor:
    return draw(pair.one)


def after_one_another(pair: Pair) -> Tensor:
    return torch.cat([draw(pair.one), draw(pair.other, prompt="blue dog", steps=3), draw(pair.one, seed=1)])


def in_turns(pair: Pair) -> Tensor:
    """At the end of each step of the one, a picture of the other."""
    others = []

    def draw_other(*_: Any) -> dict[str, Any]:
        others.append(draw(pair.other, prompt="blue dog", seed=3, steps=3))
        return {}

    drawn = draw(pair.one, steps=3, callback_on_step_end=draw_other)
    return torch.cat([drawn, *others])


def in_threads(pair: Pair) -> Tensor:
    """Step by step side by side: each waits for the other at the end of every step."""
    barrier = Barrier(2, timeout=60)

    def wait(*_: Any) -> dict[str, Any]:
        barrier.wait()
        return {}

    with ThreadPoolExecutor(2) as threads:
        drawn = [
            threads.submit(draw, pipe, prompt, seed, 3, callback_on_step_end=wait)
            for pipe, prompt, seed in ((pair.one, "red cat", 1), (pair.other, "blue dog", 2))
        ]
        pictures = [picture.result() for picture in drawn]
    # What a thread draws is what it would draw alone.
    assert torch.equal(pictures[0], draw(pair.one, "red cat", 1, 3))
    assert torch.equal(pictures[1], draw(pair.other, "blue dog", 2, 3))
    return torch.cat(pictures)


def row(name: str, on: str, build: Callable[[], Pair], draw: Callable[[Pair], Tensor], merged: Any) -> Row:
    return Row("at once", name, on, build, as_it_is, draw, draw_one, merged)


ROWS = [
    row("two pipelines on one UNet", "SD 1.5", with_one_model, after_one_another, the_one),
    row("two pipelines on one UNet, in turns", "SD 1.5", with_one_model, in_turns, the_one),
    row("two threads", "SD 1.5", partial(with_two_models, stable_diffusion), in_threads, both),
    row("two threads", "Flux", partial(with_two_models, flux_pipeline), in_threads, both),
]
