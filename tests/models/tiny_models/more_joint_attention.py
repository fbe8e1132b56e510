"""The smallest of newer image transformers whose attention reads text and image together, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, no_places, per_sample, places, prompt, steps

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

    return CogView3PlusTransformer2DModel(**SIZES, pos_embed_max_size=24, sample_size=24)


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


def hidream() -> nn.Module:
    from diffusers import HiDreamImageTransformer2DModel

    return HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=[12, 12],
        text_emb_dim=12,
        num_routed_experts=4,
        num_activated_experts=2,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(32, 32),
        llama_layers=[0, 1, 1],
        force_inference_output=True,
    )


@cache
def llama_layers(seeds: tuple[int, ...]) -> Tensor:
    return per_sample(seeds, 2, 3, 12, salt=6).transpose(0, 1).contiguous()


def hidream_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timesteps": steps(seeds),
        "encoder_hidden_states_t5": prompt(seeds),
        "encoder_hidden_states_llama3": llama_layers(tuple(seeds)),
        "pooled_embeds": per_sample(seeds, 12, salt=2),
    }


def flux3() -> nn.Module:
    from diffusers import Flux3Transformer2DModel

    return Flux3Transformer2DModel(
        in_channels=8,
        cond_in_channels=8,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        timestep_channels=8,
        mlp_ratio=2.0,
        axes_dims_rope=(2, 2, 2, 2),
    )


def flux3_inputs(seeds: Sequence[int], grid: Grid, references: Grid = ()) -> dict[str, Any]:
    inputs = {
        "hidden_states": per_sample(seeds, grid[0] * grid[1], 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "img_ids": places(4, grid),
        "txt_ids": no_places(5, 4),
    }
    if references:
        inputs["image_cond_hidden_states"] = per_sample(seeds, references[0] * references[1], 8, salt=3)
        inputs["image_cond_ids"] = places(4, references)
    return inputs
