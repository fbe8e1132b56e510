"""The smallest video models that see frames as samples of a batch, and inputs of two frames for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt, steps

UNET: dict[str, Any] = {
    "sample_size": 16,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "cross_attention_dim": 12,
    "norm_num_groups": 4,
}


def animatediff() -> nn.Module:
    from diffusers import UNetMotionModel

    return UNetMotionModel(
        **UNET,
        down_block_types=("CrossAttnDownBlockMotion", "CrossAttnDownBlockMotion"),
        up_block_types=("CrossAttnUpBlockMotion", "CrossAttnUpBlockMotion"),
        num_attention_heads=2,
        motion_num_attention_heads=2,
    )


@cache
def prompt_of_frames(seeds: tuple[int, ...]) -> Tensor:
    """(2 * len(seeds), 5, 12): AnimateDiff's pipelines repeat the text for each frame."""
    return prompt(seeds).repeat_interleave(2, dim=0)


def animatediff_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {**video_unet_inputs(seeds, grid), "encoder_hidden_states": prompt_of_frames(tuple(seeds))}


def video_unet_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "sample": per_sample(seeds, 4, 2, *grid),
        "timestep": torch.tensor(0.5),
        "encoder_hidden_states": prompt(seeds),
    }


def text_to_video() -> nn.Module:
    from diffusers import UNet3DConditionModel

    return UNet3DConditionModel(
        **UNET,
        down_block_types=("CrossAttnDownBlock3D", "CrossAttnDownBlock3D"),
        up_block_types=("CrossAttnUpBlock3D", "CrossAttnUpBlock3D"),
        attention_head_dim=4,
    )


def i2vgen() -> nn.Module:
    from diffusers import I2VGenXLUNet

    return I2VGenXLUNet(
        **UNET,
        down_block_types=("CrossAttnDownBlock3D", "CrossAttnDownBlock3D"),
        up_block_types=("CrossAttnUpBlock3D", "CrossAttnUpBlock3D"),
        attention_head_dim=4,
    )


def i2vgen_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        **video_unet_inputs(seeds, grid),
        "fps": torch.full((len(seeds),), 16),
        "image_latents": per_sample(seeds, 4, 2, *grid, salt=2),
        "image_embeddings": per_sample(seeds, 12, salt=3),
    }


def stable_video() -> nn.Module:
    from diffusers import UNetSpatioTemporalConditionModel

    return UNetSpatioTemporalConditionModel(
        sample_size=16,
        in_channels=4,
        block_out_channels=(32, 32),
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "CrossAttnDownBlockSpatioTemporal"),
        up_block_types=("CrossAttnUpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        layers_per_block=1,
        cross_attention_dim=12,
        num_attention_heads=2,
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=12,
        num_frames=2,
    )


def stable_video_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "sample": per_sample(seeds, 2, 4, *grid),
        "timestep": torch.tensor(0.5),
        "encoder_hidden_states": prompt(seeds, 1),
        "added_time_ids": torch.ones(len(seeds), 3),
    }


def latte() -> nn.Module:
    from diffusers import LatteTransformer3DModel

    return LatteTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        cross_attention_dim=8,
        sample_size=16,
        patch_size=2,
        caption_channels=12,
        video_length=2,
        norm_type="ada_norm_single",
        num_embeds_ada_norm=10,
        norm_elementwise_affine=False,
    )


def latte_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, 2, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
    }
