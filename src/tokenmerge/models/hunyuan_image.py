"""HunyuanImage 2.1: `HunyuanImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Rotary, Stack, cos_sin_at
from tokenmerge.models.builders import LatentFamily, blocks_of
from tokenmerge.models.hunyuan_video import DOUBLE_PARTS, SINGLE_PARTS

ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class HunyuanImageFamily(LatentFamily):
    """Double blocks, then single blocks; text stands behind the image."""

    name = "HunyuanImage 2.1"
    class_name = "HunyuanImageTransformer2DModel"
    pixels = 32

    def stacks(self, model: nn.Module) -> list[Stack]:
        double = blocks_of(model, "transformer_blocks", DOUBLE_PARTS, output=0, rotary=ROTARY)
        single = blocks_of(model, "single_transformer_blocks", SINGLE_PARTS, output=0, rotary=ROTARY)
        return [self.stack(model, "blocks", (*double, *single))]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        latents = self.latents(model, size, batch)
        # 1000 is the length of a prompt. The second text, for words to be written, is left out: it reads its mask.
        inputs: dict[str, Any] = {
            "hidden_states": latents if len(config.patch_size) == 2 else latents.unsqueeze(2),
            "timestep": self.times(model, batch, 500.0),
            "encoder_hidden_states": self.noise(model, batch, 1000, config.text_embed_dim),
            "encoder_attention_mask": torch.ones(batch, 1000, dtype=torch.bool, device=latents.device),
        }
        if config.guidance_embeds:
            inputs["guidance"] = self.times(model, batch, 3500.0)
        if config.use_meanflow:
            inputs["timestep_r"] = self.times(model, batch, 400.0)
        return inputs
