"""A few steps of a tiny model, so near each other that detail is nearly the same at all of them."""

from __future__ import annotations

from tiny_models import TINY_MODELS, TinyModel
from torch import Tensor, nn

FAMILIES = [model for model in TINY_MODELS if model.name in ("sd15", "sdxl", "pixart", "flux", "sd3", "wan")]
TIMESTEPS = [1000.0, 990.0, 980.0, 970.0, 960.0, 950.0, 940.0]


def generate(model: nn.Module, what: TinyModel, samples: tuple[int, ...] = (1,)) -> list[Tensor]:
    grid = what.grid(8, 8)
    return [what.call(model, samples, grid, timestep) for timestep in TIMESTEPS]


def errors(whole: list[Tensor], merged: list[Tensor]) -> list[float]:
    return [float((one - other).square().mean()) for one, other in zip(whole, merged, strict=True)]
