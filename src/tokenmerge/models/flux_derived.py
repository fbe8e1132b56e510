"""Models made after Flux.1: Bria 3.2 and Fibo, Chroma, LongCat-Image and its editing model, Ovis-Image."""

from __future__ import annotations

from typing import Any

from torch import nn

from tokenmerge.models.base import Part
from tokenmerge.models.flux import SINGLE_PARTS, FluxFamily


class BriaFamily(FluxFamily):
    name = "Bria 3.2"
    class_name = "BriaTransformer2DModel"


class BriaFiboFamily(FluxFamily):
    """Each block reads another layer of the text encoder, and single blocks are given one sequence."""

    name = "Bria Fibo"
    class_name = "BriaFiboTransformer2DModel"
    single_output = None

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        layers = config.num_layers + config.num_single_layers
        texts = self.noise(model, layers, batch, 512, config.text_encoder_dim)
        return {**super().example_inputs(model, size, batch), "text_encoder_layers": list(texts)}


class ChromaFamily(FluxFamily):
    """Text and image are joined once, and its mask hides padded text from queries too."""

    name = "Chroma"
    class_name = "ChromaTransformer2DModel"
    single_output = None


class LongCatImageFamily(FluxFamily):
    name = "LongCat-Image"
    class_name = "LongCatImageTransformer2DModel"


class OvisImageFamily(FluxFamily):
    """What gates the MLP of single blocks is made by the projection too, and is split off behind it."""

    name = "Ovis-Image"
    class_name = "OvisImageTransformer2DModel"
    single_parts = (*SINGLE_PARTS[:2], Part(("mlp",), "proj_mlp", text="first"))
