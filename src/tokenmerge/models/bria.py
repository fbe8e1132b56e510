"""Bria 3.2 and Fibo: `BriaTransformer2DModel` and `BriaFiboTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import new_like
from tokenmerge.models.flux import FluxFamily


class BriaFamily(FluxFamily):
    """As Flux.1."""

    name = "Bria 3.2"
    class_name = "BriaTransformer2DModel"


class BriaFiboFamily(FluxFamily):
    """As Flux.1, but each block reads another layer of the text encoder, and single blocks are given one sequence."""

    name = "Bria Fibo"
    class_name = "BriaFiboTransformer2DModel"
    single_output = None

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        layers = config.num_layers + config.num_single_layers
        texts = torch.randn(layers, batch, 512, config.text_encoder_dim, **new_like(model))
        return {**super().example_inputs(model, size, batch), "text_encoder_layers": list(texts)}
