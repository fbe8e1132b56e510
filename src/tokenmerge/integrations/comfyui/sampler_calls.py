"""What a sampler of ComfyUI does with the model's outputs: how often it calls the model, and what each call weighs.

Nothing is known about samplers here. The sampler's own function runs once more, on a row of numbers instead of an
image, and in the model's place stands an object that returns an impulse. What comes out is the effect of each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_CALLS = 4  # of the model, for each step; the samplers of ComfyUI take three at most
NO_NOISE = 1e-6
ROUNDING = 1e-3


@dataclass(frozen=True)
class SamplerCalls:
    """The calls of the model in one run of a sampler.

    sigmas: Of each call.
    effects: How much the final sample changes with each call's output; None if the sampler adds noise.
    """

    sigmas: tuple[float, ...]
    effects: tuple[float, ...] | None

    @property
    def adds_noise(self) -> bool:
        return self.effects is None

    def within(self, covers: Callable[[float], bool]) -> tuple[int, tuple[float, ...] | None]:
        """The number and the effects of the calls at some sigmas alone."""
        chosen = [index for index, sigma in enumerate(self.sigmas) if covers(sigma)]
        return len(chosen), None if self.effects is None else tuple(self.effects[index] for index in chosen)


def calls_of(sampler: Any, guider: Any, model_sampling: Any, sigmas: Tensor) -> SamplerCalls | None:
    """None if the sampler cannot be run on a row of numbers, or is not linear: it may choose its steps by what it sees.

    sampler: A KSAMPLER of ComfyUI, or one of someone's own.
    """
    function = getattr(sampler, "sampler_function", None)
    if function is None:
        return None
    sigmas = sigmas.detach().cpu()
    impulses = _Impulses(guider, model_sampling, sigmas)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            sample = function(
                impulses,
                impulses.row.clone(),
                sigmas,
                extra_args={"model_options": {}, "seed": 0},
                callback=None,
                disable=True,
                **getattr(sampler, "extra_options", {}),
            )
    # Whatever a sampler of someone's own raises on a row of numbers: then nothing is known about its calls.
    except Exception:
        return None
    called_at = tuple(impulses.called_at)
    *effects, nothing, everything = sample.flatten().tolist()
    if abs(nothing) > NO_NOISE:
        return SamplerCalls(called_at, None)
    largest = max(map(abs, effects))
    linear = abs(everything - sum(effects)) <= ROUNDING * largest and all(map(math.isfinite, effects))
    return SamplerCalls(called_at, tuple(effects[: len(called_at)])) if linear else None


def clean_weights(model_sampling: Any, sigma: float) -> tuple[float, float] | None:
    """Of a call's input and output in the clean image that they stand for (see `Call.clean`)."""
    level, zero, one = torch.tensor([sigma]), torch.zeros(1, 1), torch.ones(1, 1)
    scaled = float(model_sampling.calculate_input(level, one))
    input_weight = float(model_sampling.calculate_denoised(level, zero, one)) / scaled
    output_weight = -float(model_sampling.calculate_denoised(level, one, zero))
    return (input_weight, output_weight) if output_weight else None


class _Impulses:
    """Stands in the model's place: at each call another element of the row gets an output of 1, all others get 0.

    The element before the last never gets one, the last always does: they show whether the sampler is linear.
    """

    def __init__(self, guider: Any, model_sampling: Any, sigmas: Tensor) -> None:
        self.inner_model = guider  # through which samplers look up what kind of model it is
        self.sigmas = sigmas
        self._model_sampling = model_sampling
        self.row = torch.zeros(1, 1, 1, MOST_CALLS * len(sigmas) + 2)  # an image's axes
        self.called_at: list[float] = []

    def __call__(self, x: Tensor, sigma: Tensor, **_: Any) -> Tensor:
        output = torch.zeros_like(self.row)
        output[..., len(self.called_at)] = output[..., -1] = 1
        self.called_at.append(float(sigma.flatten()[0]))
        clean: Tensor = self._model_sampling.calculate_denoised(sigma, output, x)
        return clean
