"""DiT: `DiTTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.unet import basic_parts


class DiTFamily(LatentFamily):
    """One stack of blocks without text: an image is of a class. The model itself takes square images alone."""

    name = "DiT"
    class_name = "DiTTransformer2DModel"
    runs = (Run("transformer_blocks", basic_parts),)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        numbers = torch.ones(batch, dtype=torch.int64, device=inputs["timestep"].device)
        return {**inputs, "timestep": numbers * 500, "class_labels": numbers}
