"""Schedulers, and how many steps they take. Some call the model twice at one timestep."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from row import Row
from tiny_pipelines import flux_pipeline, generate, stable_diffusion
from torch import Tensor

# Name in the table -> class, options.
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Euler": ("EulerDiscreteScheduler", {}),
    "Euler ancestral": ("EulerAncestralDiscreteScheduler", {}),
    "DPM++ 2M": ("DPMSolverMultistepScheduler", {}),
    "Heun": ("HeunDiscreteScheduler", {}),
    "PNDM": ("PNDMScheduler", {"skip_prk_steps": True}),
    "PNDM with Runge-Kutta": ("PNDMScheduler", {"skip_prk_steps": False}),
    "LCM": ("LCMScheduler", {}),
}
QUICK = ("Euler ancestral", "Heun", "PNDM with Runge-Kutta")  # noise at each step, two and four calls of some steps


def schedule(pipe: Any, name: str, options: dict[str, Any]) -> Any:
    import diffusers

    pipe.scheduler = getattr(diffusers, name).from_config(pipe.scheduler.config, **options)
    return pipe


def one_and_four(pipe: Any) -> Tensor:
    """One step, then four: the second image begins at the timestep at which the first has ended."""
    return torch.cat([generate(pipe, seed=1, steps=1), generate(pipe, steps=4)])


def four(pipe: Any) -> Tensor:
    return generate(pipe, steps=4)


fifty = partial(generate, steps=50, height=64, width=64)

ROWS = [
    Row("schedulers", "DDIM, 1 step and 4 steps", "SD 1.5", stable_diffusion, generate=one_and_four),
    *(
        Row(
            "schedulers",
            f"{name}, 4 steps" if name.startswith("PNDM") else f"{name}, 1 step and 4 steps",
            "SD 1.5",
            stable_diffusion,
            partial(schedule, name=kind, options=options),
            four if name.startswith("PNDM") else one_and_four,
            long=name not in QUICK,
            tolerance=5e-4,  # their latents reach 70 and more, and rounding goes with them
        )
        for name, (kind, options) in SCHEDULERS.items()
    ),
    Row("schedulers", "flow-match Euler, 1 step and 4 steps", "Flux", flux_pipeline, generate=one_and_four),
    Row("schedulers", "DDIM, 50 steps", "SD 1.5", stable_diffusion, generate=fifty, long=True),
    Row("schedulers", "flow-match Euler, 50 steps", "Flux", flux_pipeline, generate=fifty, long=True),
]
