"""LTX-Video: `LTXVideoTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at
from tokenmerge.models.builders import PackedFamily, Run

PARTS = (Part(("self",), "attn1", mask="3d"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))


class LTXFamily(PackedFamily):
    """One stack of blocks over frames, rows and columns. Tokens of conditions stand in front and are never merged."""

    name = "LTX-Video"
    class_name = "LTXVideoTransformer3DModel"
    video = True
    runs = (Run("transformer_blocks", PARTS, rotary=Rotary("image_rotary_emb", cos_sin_at, per_sample=True)),)
    token_pixels = 32
    frames = 21  # of 161
    time = 500.0
    text = 128, "caption_channels"
    text_mask = "encoder_attention_mask"

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(kwargs[name] for name in ("num_frames", "height", "width"))

    def has_time_per_token(self, kwargs: Mapping[str, Any]) -> bool:
        timestep = kwargs["timestep"]
        return bool(timestep.dim() > 1 and timestep.shape[1] > 1)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        rows, columns = self.example_grid(size)
        inputs = super().example_inputs(model, size, batch)
        return {**inputs, "num_frames": self.frames, "height": rows, "width": columns}
