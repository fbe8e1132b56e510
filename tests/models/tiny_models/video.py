"""The smallest video transformers, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tiny_models.base import Grid, per_sample, prompt, steps

WAN: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 12,
    "freq_dim": 8,
    "ffn_dim": 16,
    "num_layers": 2,
    "cross_attn_norm": True,
    "rope_max_seq_len": 64,
}


def wan() -> nn.Module:
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(**WAN)


def wan_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
    }


def ltx() -> nn.Module:
    from diffusers import LTXVideoTransformer3DModel

    return LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=12,
    )


def ltx_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    frames, height, width = grid
    return {
        "hidden_states": per_sample(seeds, frames * height * width, 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]] * len(seeds)),
        "num_frames": frames,
        "height": height,
        "width": width,
        # Position embeddings of a sample depend on its own speed.
        "rope_interpolation_scale": (1 / 24, 32.0, 32.0),
    }


def hunyuan_video(**more: Any) -> nn.Module:
    from diffusers import HunyuanVideoTransformer3DModel

    return HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=2,
        text_embed_dim=12,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 2),
        **more,
    )


def hunyuan_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[True, True, True, True, False]] * len(seeds)),
        "pooled_projections": per_sample(seeds, 8, salt=2),
        "guidance": torch.full((len(seeds),), 6000.0),
    }
