"""The smallest video transformers that read text by cross-attention, beyond Wan and LTX, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt, steps
from tiny_models.video import WAN, ltx_inputs, wan_inputs


def skyreels() -> nn.Module:
    from diffusers import SkyReelsV2Transformer3DModel

    return SkyReelsV2Transformer3DModel(**WAN)


def chronoedit() -> nn.Module:
    from diffusers import ChronoEditTransformer3DModel

    return ChronoEditTransformer3DModel(**WAN)


def wan_vace() -> nn.Module:
    from diffusers import WanVACETransformer3DModel

    return WanVACETransformer3DModel(**WAN, vace_layers=[0], vace_in_channels=4)


def wan_vace_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    control = per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2, salt=2)
    return {**wan_inputs(seeds, grid), "control_hidden_states": control}


def wan_animate() -> nn.Module:
    from diffusers import WanAnimateTransformer3DModel

    return WanAnimateTransformer3DModel(
        **{**WAN, "in_channels": 12},
        latent_channels=4,
        image_dim=None,
        motion_encoder_channel_sizes={"4": 4, "8": 4, "16": 4},
        motion_encoder_size=16,
        motion_style_dim=4,
        motion_dim=2,
        motion_encoder_dim=4,
        face_encoder_hidden_dim=4,
        face_encoder_num_heads=2,
        inject_face_latents_blocks=1,
    )


def wan_animate_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    frames = grid[0] - 1
    return {
        **wan_inputs(seeds, grid),
        "hidden_states": per_sample(seeds, 12, grid[0], grid[1] * 2, grid[2] * 2),
        "pose_hidden_states": per_sample(seeds, 4, frames, grid[1] * 2, grid[2] * 2, salt=2),
        "face_pixel_values": per_sample(seeds, 3, 4 * frames - 3, 16, 16, salt=3),
    }


def cosmos() -> nn.Module:
    from diffusers import CosmosTransformer3DModel

    return CosmosTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        mlp_ratio=2.0,
        text_embed_dim=12,
        adaln_lora_dim=4,
        max_size=(16, 48, 48),
        concat_padding_mask=False,
        extra_pos_embed_type="learnable",
    )


def cosmos_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "fps": 24,
    }


def kandinsky5() -> nn.Module:
    from diffusers import Kandinsky5Transformer3DModel

    model = Kandinsky5Transformer3DModel(
        in_visual_dim=4,
        out_visual_dim=4,
        in_text_dim=12,
        in_text_dim2=8,
        time_dim=8,
        model_dim=24,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=2,
        axes_dims=(4, 4, 4),
    )
    for name, weight in model.named_parameters():
        if "modulation" in name:  # zero before training, so that no block would matter
            nn.init.normal_(weight, std=0.5)
    return model


@cache
def places_along(*counts: int) -> tuple[Tensor, ...]:
    return tuple(torch.arange(count) for count in counts)


def kandinsky5_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, grid[0], grid[1] * 2, grid[2] * 2, 4),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "pooled_projections": per_sample(seeds, 8, salt=2),
        "visual_rope_pos": places_along(*grid),
        "text_rope_pos": places_along(5)[0],
    }


def ltx2(**more: Any) -> nn.Module:
    from diffusers import LTX2VideoTransformer3DModel

    return LTX2VideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=2,
        caption_channels=12,
        rope_double_precision=False,
        **more,
    )


def ltx2_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    video = ltx_inputs(seeds, grid)
    del video["rope_interpolation_scale"]
    return {
        **video,
        "audio_hidden_states": per_sample(seeds, 6, 4, salt=2),
        "audio_encoder_hidden_states": prompt(seeds),
        "audio_encoder_attention_mask": video["encoder_attention_mask"],
        "sigma": steps(seeds),
        "audio_num_frames": 6,
    }


def allegro() -> nn.Module:
    from diffusers import AllegroTransformer3DModel

    return AllegroTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        cross_attention_dim=24,
        sample_height=8,
        sample_width=8,
        sample_frames=2,
        caption_channels=12,
    )


@cache
def allegro_positions(grid: Grid) -> tuple[Any, Any]:
    angles = [torch.arange(side)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1]) for side in grid]
    positions = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    return tuple((angle.cos(), angle.sin()) for angle in angles), tuple(axis.reshape(1, -1) for axis in positions)


def allegro_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * len(seeds)),
        "image_rotary_emb": allegro_positions(grid),
    }
