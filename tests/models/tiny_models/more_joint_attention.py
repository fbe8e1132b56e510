"""The smallest CogViews, GLM-Image and HunyuanImage, whose attention reads text and image together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt, steps

SIZES: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "text_embed_dim": 12,
    "time_embed_dim": 8,
    "condition_dim": 4,
}


def cogview3_plus() -> nn.Module:
    from diffusers import CogView3PlusTransformer2DModel

    return CogView3PlusTransformer2DModel(**SIZES, pos_embed_max_size=16, sample_size=16)


def cogview_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    pixels = torch.full((len(seeds), 2), 64.0)
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "encoder_hidden_states": prompt(seeds),
        "timestep": steps(seeds),
        "original_size": pixels,
        "target_size": pixels,
        "crop_coords": torch.zeros_like(pixels),
    }


def cogview4() -> nn.Module:
    from diffusers import CogView4Transformer2DModel

    return CogView4Transformer2DModel(**SIZES, sample_size=16, rope_axes_dim=(64, 64))


@cache
def text_mask(batch: int) -> Tensor:
    return torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]] * batch)


def cogview4_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {**cogview_inputs(seeds, grid), "attention_mask": text_mask(len(seeds))}


def glm_image() -> nn.Module:
    from diffusers import GlmImageTransformer2DModel

    return GlmImageTransformer2DModel(**SIZES, prior_vq_quantizer_codebook_size=16)


@cache
def prior_tokens(seeds: tuple[int, ...], tokens: int) -> Tensor:
    return per_sample(seeds, tokens, salt=4).mul(5).abs().long().clamp(max=15)


@cache
def kept_prior(batch: int, tokens: int) -> Tensor:
    return torch.zeros(batch, tokens, dtype=torch.bool)


def glm_image_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    inputs = cogview_inputs(seeds, grid)
    del inputs["original_size"]
    tokens = grid[0] * grid[1]
    return {
        **inputs,
        "prior_token_id": prior_tokens(tuple(seeds), tokens),
        "prior_token_drop": kept_prior(len(seeds), tokens),
    }


def hunyuan_image() -> nn.Module:
    from diffusers import HunyuanImageTransformer2DModel

    return HunyuanImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=12,
        rope_axes_dim=(4, 4),
    )


def hunyuan_image_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, *grid),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": text_mask(len(seeds)).bool(),
    }
