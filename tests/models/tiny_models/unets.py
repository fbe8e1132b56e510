"""The smallest UNets of Stable Diffusion, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tiny_models.base import Grid, per_sample, prompt


def sd15_unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=12,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def sdxl_unet(time_ids: int = 6) -> nn.Module:
    """`time_ids`: how many numbers describe the image; the refiner has 5."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 3),
        layers_per_block=1,
        cross_attention_dim=12,
        attention_head_dim=(1, 2, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=time_ids * 4 + 8,
        norm_num_groups=4,
    )


def unet_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "sample": per_sample(seeds, 4, *grid),
        "timestep": torch.tensor(0.5),
        "encoder_hidden_states": prompt(seeds),
    }


def sdxl_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    """The first transformer of SDXL is one level down, so the latent is twice the grid."""
    added = {"text_embeds": per_sample(seeds, 8, salt=2), "time_ids": torch.ones(len(seeds), 6)}
    latent = grid[0] * 2, grid[1] * 2
    return {**unet_inputs(seeds, latent), "added_cond_kwargs": added}
