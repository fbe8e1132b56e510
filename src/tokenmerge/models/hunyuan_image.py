"""HunyuanImage 2.1: `HunyuanImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tokenmerge.models.base import Rotary, cos_sin_at
from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.hunyuan_video import DOUBLE_PARTS, SINGLE_PARTS

ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class HunyuanImageFamily(LatentFamily):
    """Double blocks, then single blocks; text stands behind the image."""

    name = "HunyuanImage 2.1"
    class_name = "HunyuanImageTransformer2DModel"
    pixels = 32
    runs = (
        Run("transformer_blocks", DOUBLE_PARTS, output=0, rotary=ROTARY),
        Run("single_transformer_blocks", SINGLE_PARTS, output=0, rotary=ROTARY),
    )
    text = 1000, "text_embed_dim"  # the second text, for words to be written, is left out: it reads its mask
    text_mask = "encoder_attention_mask"
    guidance = 3500.0

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        if model.config.use_meanflow:  # type: ignore[union-attr]
            inputs["timestep_r"] = self.times(model, batch, 400.0)
        return inputs

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, C, H, W), or with a frame, (B, C, 1, H, W)"""
        config: Any = model.config
        latents = super().latents(model, size, batch)
        return latents if len(config.patch_size) == 2 else latents.unsqueeze(2)
