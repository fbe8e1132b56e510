"""The model that is measured: an architecture at full size with random weights, or one from a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.bench.machine import free_memory
from tokenmerge.errors import ConfigError, ModelLoadError, UsageError
from tokenmerge.models import family_of
from tokenmerge.models import published as architectures
from tokenmerge.models.base import Family
from tokenmerge.runtime.model_folder import INDEX, read_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TINY = "tiny-random"  # for trying the command itself: its figures mean nothing


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
        arguments = {name: _at_step(value, step) if name == "timestep" else value for name, value in others}
        with torch.no_grad():
            return self.model(first, **arguments)


def subject_of(model: nn.Module, size: tuple[int, int], batch: int, family: Family | None = None) -> Subject:
    """A model with example inputs for an image of (height, width) pixels, the same ones each time."""
    family = family or family_of(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = family.example_inputs(model, size, batch)
    return Subject(model, family, size, batch, inputs)


def load_model(name: str, device: torch.device, dtype: torch.dtype, blocks: Sequence[int] | None) -> nn.Module:
    """Build the architecture `name`, or load the denoiser of a model in the folder `name`, if it fits."""
    if name == TINY:
        from tokenmerge.runtime.tiny_random import build_tiny_random

        return placed(build_tiny_random().unet, device, dtype)
    if name in architectures.ARCHITECTURES:
        shape = architectures.build(name, blocks=blocks)
        _check_fits(name, sum(weight.numel() for weight in shape.parameters()) * dtype.itemsize, device, dtype, blocks)
        return architectures.build(name, device, dtype, blocks)
    if blocks is not None:
        raise UsageError(f"--blocks cuts an architecture built by name, and --model is {name!r}: leave --blocks out.")
    if Path(name).is_dir():
        return placed(_load_folder(Path(name), dtype), device, dtype)
    try:
        architectures.architecture(name)
    except ConfigError as error:
        raise UsageError(f"--model: {error} A folder with a diffusers model works as well.") from None
    raise AssertionError("an architecture that is neither known nor unknown")


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


def _load_folder(folder: Path, dtype: torch.dtype) -> nn.Module:
    from diffusers import AutoModel

    subfolder = None
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        subfolder = next((name for name in ("unet", "transformer") if name in index), None)
    try:
        model: nn.Module = AutoModel.from_pretrained(
            str(folder),  # a Path to a bare model fails in AutoModel
            subfolder=subfolder,
            torch_dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except Exception as error:  # diffusers raises many kinds; to the user they are all one
        raise ModelLoadError(
            f"no model could be loaded from {folder}: {error} Give the folder of a diffusers pipeline, or of its unet "
            f"or transformer."
        ) from error
    return model


def _at_step(timestep: Tensor | float, step: int) -> Tensor | float:
    """A hundredth of the way further at each step, on whatever scale the model counts."""
    return timestep * (1 - step / 100)
