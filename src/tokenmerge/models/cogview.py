"""CogView 3 Plus and CogView 4: `CogView3PlusTransformer2DModel`, `CogView4Transformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Part, Rotary, Stack, cos_sin_at, new_like
from tokenmerge.models.builders import LatentFamily, blocks_of

ATTENTION = Part(("self",), "attn1", mask="inside", text="first", text_mask=True)
ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class CogView3PlusFamily(LatentFamily):
    """Joint blocks whose MLP takes text and image in one sequence; positions are added before the first."""

    name = "CogView 3 Plus"
    class_name = "CogView3PlusTransformer2DModel"
    text_tokens = 224
    parts: tuple[Part, ...] = (ATTENTION, Part(("mlp",), "ff", text="first"))
    rotary: Rotary | None = None

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", self.parts, output=0, rotary=self.rotary)
        return [self.stack(model, "transformer_blocks", blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        pixels = torch.tensor([size] * batch, **new_like(model))
        return {
            "hidden_states": self.latents(model, size, batch),
            "encoder_hidden_states": self.noise(model, batch, self.text_tokens, config.text_embed_dim),
            "timestep": self.times(model, batch, 500.0),
            "original_size": pixels,
            "target_size": pixels,
            "crop_coords": torch.zeros_like(pixels),
        }


class CogView4Family(CogView3PlusFamily):
    """Joint blocks that call one MLP twice, for image and text."""

    name = "CogView 4"
    class_name = "CogView4Transformer2DModel"
    text_tokens = 1024
    parts = (ATTENTION, Part(("mlp",), "ff", calls=2))
    rotary = ROTARY
