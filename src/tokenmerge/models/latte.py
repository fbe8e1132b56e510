"""Latte: `LatteTransformer3DModel`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.unet import basic_parts


class LatteFamily(LatentFamily):
    """Blocks over the patches of each frame; those over frames, between them, keep every token."""

    name = "Latte (video)"
    class_name = "LatteTransformer3DModel"
    always_interleaved = True
    runs = (Run("transformer_blocks", basic_parts),)
    text = 120, "caption_channels"

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, C, F, H, W)"""
        config: Any = model.config
        return self.noise(model, batch, config.in_channels, config.video_length, size[0] // 8, size[1] // 8)
