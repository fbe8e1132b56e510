"""Whole generations of a bare model with random weights: what fewer steps, caches and our methods cost.

Accelerations that decide by what they see are refused: random weights show them nothing that a trained model would.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tokenmerge.accelerations.base import Acceleration, Generation, refuse_misfit
from tokenmerge.accelerations.diffusers_caches import DiffusersCache
from tokenmerge.bench.subject import Subject
from tokenmerge.errors import ConfigError
from tokenmerge.runtime.multiply_adds import executed_in
from tokenmerge.runtime.timing import Clock

TRAINED_STEPS = 1000  # the scale on which schedulers and caches count timesteps


@dataclass(frozen=True)
class Contestant:
    """An acceleration and what tables call it; None is the model as it is."""

    name: str
    acceleration: Acceleration | None = None

    def steps_of(self, steps: int) -> int:
        return steps if self.acceleration is None else self.acceleration.steps_of(steps)


class BareLoop:
    """What accelerations need of a pipeline, around a model alone: its denoiser, timesteps, and a loop over them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.current_timestep: torch.Tensor | None = None
        self.scheduler = SimpleNamespace(timesteps=torch.empty(0))
        setattr(self, "unet" if hasattr(subject.model, "down_blocks") else "transformer", subject.model)

    def run(self, steps: int) -> None:
        """Call the model once for each step, on the same inputs at falling timesteps."""
        model: Any = self.subject.model
        (_, first), *others = self.subject.inputs.items()
        given = {name: value for name, value in others if name != "timestep"}
        # Flux and its kin count from 1 to 0, and all others from 1000.
        unit = 1.0 if hasattr(model.config, "guidance_embeds") else TRAINED_STEPS
        # On the CPU: DeepCache reads the number, which has no value on the meta device.
        self.scheduler.timesteps = torch.linspace(TRAINED_STEPS - 1, 1, steps).round()
        for timestep in self.scheduler.timesteps:
            self.current_timestep = timestep
            now = timestep * unit / TRAINED_STEPS
            with torch.no_grad(), model.cache_context("cond") if hasattr(model, "cache_context") else nullcontext():
                if hasattr(self, "unet"):
                    model(first, now, **given)
                else:
                    # One for each sample, in addition to the model.
                    model(first, timestep=now.to(self.subject.device).expand(self.subject.batch), **given)


def refuse_adaptive(name: str, acceleration: Acceleration) -> None:
    """Raise for what depends on the image."""
    calibrates = isinstance(acceleration, DiffusersCache) and acceleration.kind.calibrates
    if acceleration.adapts or calibrates:
        raise ConfigError(
            f"{name} decides by the image what it computes, and random weights make no image: compare it with "
            f"`tokenmerge eval` on a trained model, or leave it out."
        )


def check_contestants(contestants: Sequence[Contestant], subject: Subject) -> None:
    """Raise for what could not be run, before anything is measured."""
    loop = BareLoop(subject)
    for contestant in contestants:
        if contestant.acceleration is not None:
            refuse_adaptive(contestant.name, contestant.acceleration)
            refuse_misfit(contestant.name, contestant.acceleration, loop)


def generation_multiply_adds(shadow: Subject, contestant: Contestant, steps: int) -> int:
    """Executed in all calls of a generation; `shadow` may be on the meta device."""
    with executed_in([shadow.model]) as counted:
        run_generation(shadow, contestant, steps)
    return counted.total


def generation_seconds(subject: Subject, contestant: Contestant, steps: int) -> float:
    return Clock(subject.device).seconds(lambda: run_generation(subject, contestant, steps))


def run_generation(subject: Subject, contestant: Contestant, steps: int) -> None:
    loop, run = BareLoop(subject), contestant.steps_of(steps)
    acceleration = contestant.acceleration
    with nullcontext() if acceleration is None else acceleration.applied(_target(acceleration, loop), Generation(run)):
        loop.run(run)


def _target(acceleration: Acceleration, loop: BareLoop) -> BareLoop | nn.Module:
    """Our own methods take the model itself: a loop that is no pipeline has nothing more for them."""
    return loop.subject.model if acceleration.ours else loop
