"""Sana: `SanaTransformer2DModel`, of which only cross-attention can run on fewer tokens."""

from __future__ import annotations

from typing import Any

from torch import nn

from tokenmerge.models.base import Part
from tokenmerge.models.builders import LatentFamily, Run


class SanaFamily(LatentFamily):
    """Self-attention is linear in the number of tokens, and the MLP is convolutional, so both keep every token."""

    name = "Sana"
    class_name = "SanaTransformer2DModel"
    pixels = 32
    cannot_weigh = "it has no softmax self-attention"
    runs = (Run("transformer_blocks", (Part(("cross",), "attn2"),)),)
    fixed_order = "Sana's self-attention is linear already and its MLP has convolutions over the whole grid"
    text = 300, "caption_channels"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        if model.config.guidance_embeds:  # type: ignore[union-attr]
            inputs["guidance"] = self.times(model, batch, 4.5)
        return inputs
