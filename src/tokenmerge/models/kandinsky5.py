"""Kandinsky 5, video and image: `Kandinsky5Transformer3DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, rows_at
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (
    Part(("self",), "self_attention", mask="inside"),
    Part(("cross",), "cross_attention"),
    Part(("mlp",), "feed_forward"),
)
ROTARY = Rotary("rope", rows_at, attention_argument="rotary_emb", per_sample=True)


class Kandinsky5Family(LatentFamily):
    """One stack of blocks over frames, rows and columns; images have one frame."""

    name = "Kandinsky 5 (video, image)"
    class_name = "Kandinsky5Transformer3DModel"
    video = True
    conditions = ("encoder_hidden_states", "pooled_projections")
    runs = (Run("visual_transformer_blocks", PARTS, rotary=ROTARY),)
    grid_axes = 1, 2, 3  # channels come last
    refused = "sparse_params"
    refused_because = (
        "this call uses Kandinsky's sparse attention (sparse_params), which needs every token in an "
        "order of its own: set attention_type='regular' in the model's config, or take merging out with "
        "handle.remove()."
    )
    frames = 31  # of 121
    text = 256, "in_text_dim"
    embeddings = (("pooled_projections", "in_text_dim2"),)

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, F, H, W, C)"""
        config: Any = model.config
        channels = 2 * config.in_visual_dim + 1 if config.visual_cond else config.in_visual_dim
        return self.noise(model, batch, self.frames, size[0] // 8, size[1] // 8, channels)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        texts = inputs["encoder_hidden_states"]
        lengths = self.frames, size[0] // 16, size[1] // 16, texts.shape[1]
        indices = [torch.arange(length, device=texts.device) for length in lengths]
        return {
            **inputs,
            "visual_rope_pos": indices[:3],
            "text_rope_pos": indices[3],
        }
