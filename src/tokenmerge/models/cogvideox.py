"""CogVideoX 1.0 and 1.5, and ConsisID on top of it: `CogVideoXTransformer3DModel`, `ConsisIDTransformer3DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at, new_like
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (Part(("self",), "attn1", mask="3d", text="first"), Part(("mlp",), "ff", text="first"))


class CogVideoXFamily(LatentFamily):
    """One stack of joint blocks over frames, rows and columns; text stands before the video."""

    name = "CogVideoX (1.0, 1.5)"
    class_name = "CogVideoXTransformer3DModel"
    video = True
    runs = (Run("transformer_blocks", PARTS, output=0, rotary=Rotary("image_rotary_emb", cos_sin_at)),)
    grid_axes = 1, 3, 4
    frames = 13  # of 49
    text = "max_text_seq_length", "text_embed_dim"

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, F, C, H, W)"""
        config: Any = model.config
        frames = self.frames * (getattr(config, "patch_size_t", None) or 1)
        return self.noise(model, batch, frames, config.in_channels, size[0] // 8, size[1] // 8)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        inputs = super().example_inputs(model, size, batch)
        if config.use_rotary_positional_embeddings:
            rows = torch.randn(self.frames * (size[0] // 16) * (size[1] // 16), config.attention_head_dim, **new)
            inputs["image_rotary_emb"] = (rows.cos(), rows.sin())
        if getattr(config, "ofs_embed_dim", None) is not None:
            inputs["ofs"] = torch.full((1,), 2.0, **new)
        return inputs


class ConsisIDFamily(CogVideoXFamily):
    """As CogVideoX. With a face to follow, something is added to the tokens between blocks."""

    name = "ConsisID"
    class_name = "ConsisIDTransformer3DModel"
    between_blocks = ("id_cond",)
