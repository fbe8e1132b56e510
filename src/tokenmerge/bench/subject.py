"""The model that is measured: an architecture at full size with random weights, or one that is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge import zoo
from tokenmerge.errors import ConfigError, UsageError
from tokenmerge.models import family_of
from tokenmerge.models import published as architectures
from tokenmerge.models.base import Family
from tokenmerge.runtime.denoisers import load_denoiser
from tokenmerge.runtime.machine import free_memory
from tokenmerge.runtime.pipelines import TINY_RANDOM


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with the arguments it is called with."""

    model: nn.Module
    family: Family
    size: tuple[int, int]  # height and width of the image in pixels
    batch: int
    inputs: dict[str, Any]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def call(self, step: int) -> Any:
        """Run the model as a sampler's step `step` would: each at a smaller timestep than the one before."""
        # The first argument goes by position: the tomesd package looks for it there.
        (_, first), *others = self.inputs.items()
        rises = self.family.timestep_rises
        moving = self.family.timestep
        arguments = {name: _at_step(value, step, rises) if name == moving else value for name, value in others}
        with torch.no_grad():
            return self.model(first, **arguments)


def subject_of(model: nn.Module, size: tuple[int, int], batch: int, family: Family | None = None) -> Subject:
    """A model with example inputs for an image of (height, width) pixels, the same ones each time."""
    family = family or family_of(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = family.example_inputs(model, size, batch)
    return Subject(model, family, size, batch, inputs)


def load_model(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    blocks: Sequence[int] | None = None,
    allow_pickle: bool = False,
) -> nn.Module:
    """Build the architecture `name` with random weights, if it fits; or load the denoiser of a model."""
    if name in architectures.ARCHITECTURES:
        shape = architectures.build(name, blocks=blocks)
        _check_fits(name, sum(weight.numel() for weight in shape.parameters()) * dtype.itemsize, device, dtype, blocks)
        return architectures.build(name, device, dtype, blocks)
    if blocks is not None:
        raise UsageError(f"--blocks cuts an architecture built by name, and --model is {name!r}: leave --blocks out.")
    if name != TINY_RANDOM and name not in zoo.list_models() and not Path(name).expanduser().is_dir():
        try:
            architectures.architecture(name)
        except ConfigError as error:
            raise UsageError(f"--model: {error} A folder with a diffusers model works too.") from None
    return placed(load_denoiser(name, dtype, allow_pickle), device, dtype)


def placed(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model where it will run, ready for that alone."""
    # Past diffusers' own `to`, which warns about weights it would keep in float32 even where there are none.
    return nn.Module.to(model, device=device, dtype=dtype).eval().requires_grad_(False)


def default_size(name: str) -> int:
    """The side in pixels of the image a model was made for."""
    known = architectures.ARCHITECTURES.get(name)
    return 512 if known is None else known.pixels


def _check_fits(name: str, needed: int, device: torch.device, dtype: torch.dtype, blocks: Sequence[int] | None) -> None:
    free = free_memory(device)
    if free is None or needed < free:
        return
    cut = architectures.architecture(name).depth
    # One of each kind of block is the least that shows what merging does to it.
    ways = ["a smaller --model"] if blocks is not None or not cut else [f"--blocks {','.join('1' for _ in cut)}"]
    if needed * torch.bfloat16.itemsize / dtype.itemsize < free:
        ways.append("--dtype bfloat16")
    precision = str(dtype).removeprefix("torch.")
    raise UsageError(
        f"{name} needs {needed / 1e9:.1f} GB for its weights in {precision}, and {free / 1e9:.1f} GB are free on "
        f"{device}: use {' or '.join(ways)}."
    )


def _at_step(timestep: Tensor | float, step: int, rises: bool) -> Tensor | float:
    """A hundredth of the way further at each step, on whatever scale the model counts."""
    left = 1 - step / 100
    return 1 - (1 - timestep) * left if rises else timestep * left
