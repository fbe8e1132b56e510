"""The smallest image transformers that read text by cross-attention, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tiny_models.base import Grid, per_sample, prompt, steps


def pixart() -> nn.Module:
    from diffusers import PixArtTransformer2DModel

    return PixArtTransformer2DModel(
        sample_size=16,
        num_layers=3,
        patch_size=2,
        attention_head_dim=4,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        cross_attention_dim=8,
        caption_channels=12,
        use_additional_conditions=False,
    )


def pixart_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def sana() -> nn.Module:
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=4,
        num_attention_heads=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=12,
    )


def sana_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, *grid),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * len(seeds)),
    }
