"""What a pipeline's scheduler does with the model's outputs: how many steps are left, and what each one weighs."""

from __future__ import annotations

import copy
import math
import weakref
from typing import Any

import torch

# Timesteps reach the model rounded to its precision; bfloat16 keeps eight bits.
ROUNDING = 0.01
TRAINED_STEPS = 1000  # Flux and others give the model timesteps divided by this


class SamplerSteps:
    """Reads the scheduler that a pipeline has at the moment an image begins.

    It holds on to the pipeline by a weak reference: a copy of the model must not copy the pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = weakref.ref(pipeline)

    def __call__(self, first_timestep: float | None) -> tuple[int, tuple[float, ...]] | None:
        """Steps of an image that begins at a timestep, and the effect of each one's output on the final sample.

        None if they are not known: no scheduler, one that does not have this timestep, or one that is not linear in the
        outputs or adds noise. Forecasts of outputs lose most there, so few steps are skipped, as with an unknown one.
        """
        scheduler = getattr(self._pipeline(), "scheduler", None)
        timesteps = getattr(scheduler, "timesteps", None)
        if first_timestep is None or not isinstance(timesteps, torch.Tensor) or timesteps.ndim != 1:
            return None
        # A scheduler of second order calls the model twice a step, at points that are no steps of a line.
        if getattr(scheduler, "order", 1) != 1:
            return None
        known = [float(timestep) for timestep in timesteps.tolist()]
        begin = _position(known, first_timestep)
        if begin is None:
            return None
        effects = _effects(scheduler, timesteps.cpu()[begin:])
        return None if effects is None else (len(known) - begin, effects)


def _position(timesteps: list[float], wanted: float) -> int | None:
    """The first step with this timestep, as the scheduler counts it or as a fraction."""
    for scale in (1, TRAINED_STEPS):
        distances = [abs(timestep - wanted * scale) for timestep in timesteps]
        nearest = min(distances, default=math.inf)
        if nearest <= ROUNDING * wanted * scale:
            return distances.index(nearest)
    return None


def _effects(scheduler: Any, timesteps: torch.Tensor) -> tuple[float, ...] | None:
    """The final sample for an output of 1 at one step and of 0 at all others: one element of a tensor for each step.

    Two more elements check that the sampler is linear: one with no output at all, one with an output of 1 throughout.
    """
    count = len(timesteps)
    outputs = torch.cat([torch.eye(count), torch.zeros(count, 1), torch.ones(count, 1)], dim=1).double()
    sample = torch.zeros(1, 1, 1, count + 2, dtype=torch.float64)  # as an image, which some schedulers insist on
    try:
        sampler = copy.deepcopy(scheduler)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for timestep, output in zip(timesteps, outputs, strict=True):
                sampler.scale_model_input(sample, timestep) if hasattr(sampler, "scale_model_input") else None
                sample = sampler.step(output.view_as(sample), timestep, sample, return_dict=False)[0]
    # Whatever a scheduler of someone's own raises on a row of numbers: its steps are then not corrected.
    except Exception:
        return None
    *effects, nothing, everything = sample.flatten().tolist()
    linear = abs(nothing) < 1e-6 and abs(everything - sum(effects)) <= 1e-3 * max(map(abs, effects))
    return tuple(effects) if linear and all(map(math.isfinite, effects)) else None
