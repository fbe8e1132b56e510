"""Sana: `SanaTransformer2DModel`, of which only cross-attention can run on fewer tokens."""

from __future__ import annotations

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
    guidance = 4.5
