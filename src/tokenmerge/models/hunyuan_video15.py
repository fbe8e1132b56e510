"""HunyuanVideo 1.5: `HunyuanVideo15Transformer3DModel`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Family, Part, Rotary, Stack, blocks_of, cos_sin_at, new_like, patch_grid
from tokenmerge.models.meta_masks import let_masks_be_true

# Its attention makes a mask of all queries and keys from the one of the text that it is given.
PARTS = (Part(("self",), "attn", mask="inside", text_mask=True, text="last"), Part(("mlp",), "ff"))
ROTARY = Rotary("freqs_cis", cos_sin_at, attention_argument="image_rotary_emb")
IMAGE_TOKENS = 729  # of the image that a video begins with, from SigLIP


class HunyuanVideo15Family(Family):
    """One stack of joint blocks over frames, rows and columns; text stands behind the video."""

    name = "HunyuanVideo 1.5"
    class_name = "HunyuanVideo15Transformer3DModel"
    video = True
    pixels = 16
    conditions = ("encoder_hidden_states", "encoder_hidden_states_2", "image_embeds")

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        blocks = blocks_of(model, "transformer_blocks", PARTS, output=0, rotary=ROTARY)
        grid = partial(patch_grid, (config.patch_size_t, config.patch_size, config.patch_size))
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def prepare_meta(self, model: nn.Module) -> None:
        let_masks_be_true(model)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 121 frames of a video are 31 latent ones; 1000 is the length of a prompt, 256 that of words to be written.
        mask = torch.ones(batch, 1000, device=new["device"])
        return {
            "hidden_states": torch.randn(batch, config.in_channels, 31, size[0] // 16, size[1] // 16, **new),
            "encoder_hidden_states": torch.randn(batch, 1000, config.text_embed_dim, **new),
            "encoder_attention_mask": mask.bool(),
            "encoder_hidden_states_2": torch.randn(batch, 256, config.text_embed_2_dim, **new),
            "encoder_attention_mask_2": mask[:, :256].bool(),
            "image_embeds": torch.randn(batch, IMAGE_TOKENS, config.image_embed_dim, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }
