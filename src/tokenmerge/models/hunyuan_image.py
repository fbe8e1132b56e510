"""HunyuanImage 2.1: `HunyuanImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

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
    text = 1000, "text_embed_dim"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        inputs = super().example_inputs(model, size, batch)
        latents, texts = inputs["hidden_states"], inputs["encoder_hidden_states"]
        inputs["hidden_states"] = latents if len(config.patch_size) == 2 else latents.unsqueeze(2)
        # The second text, for words to be written, is left out: it reads its mask.
        inputs["encoder_attention_mask"] = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device)
        if config.guidance_embeds:
            inputs["guidance"] = self.times(model, batch, 3500.0)
        if config.use_meanflow:
            inputs["timestep_r"] = self.times(model, batch, 400.0)
        return inputs
