"""CogView 3 Plus and CogView 4: `CogView3PlusTransformer2DModel`, `CogView4Transformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at, new_like
from tokenmerge.models.builders import LatentFamily, Run

ATTENTION = Part(("self",), "attn1", mask="inside", text="first", text_mask=True)
ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class CogView3PlusFamily(LatentFamily):
    """Joint blocks whose MLP takes text and image in one sequence; positions are added before the first."""

    name = "CogView 3 Plus"
    class_name = "CogView3PlusTransformer2DModel"
    runs = (Run("transformer_blocks", (ATTENTION, Part(("mlp",), "ff", text="first")), output=0),)
    text = 224, "text_embed_dim"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        pixels = torch.tensor([size] * batch, **new_like(model))
        sizes = {"original_size": pixels, "target_size": pixels, "crop_coords": torch.zeros_like(pixels)}
        return {**super().example_inputs(model, size, batch), **sizes}


class CogView4Family(CogView3PlusFamily):
    """Joint blocks that call one MLP twice, for image and text."""

    name = "CogView 4"
    class_name = "CogView4Transformer2DModel"
    runs = (Run("transformer_blocks", (ATTENTION, Part(("mlp",), "ff", calls=2)), output=0, rotary=ROTARY),)
    text = 1024, "text_embed_dim"
