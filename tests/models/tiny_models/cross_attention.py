"""The smallest image transformers that read text by cross-attention, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

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


def dit() -> nn.Module:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=4,
        num_layers=3,
        sample_size=16,
        num_embeds_ada_norm=10,
        norm_num_groups=4,
    )


@cache
def labels(seeds: tuple[int, ...]) -> Tensor:
    return torch.tensor([seed % 10 for seed in seeds])


def dit_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "class_labels": labels(tuple(seeds)),
    }


def hunyuan_dit() -> nn.Module:
    from diffusers import HunyuanDiT2DModel

    return HunyuanDiT2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        patch_size=2,
        sample_size=16,
        hidden_size=16,
        num_layers=4,
        mlp_ratio=2.0,
        cross_attention_dim=12,
        cross_attention_dim_t5=16,  # its eight heads divide it
        pooled_projection_dim=12,
        text_len=5,
        text_len_t5=4,
        use_style_cond_and_image_meta_size=False,
    )


@cache
def rotary_rows(grid: Grid) -> tuple[Tensor, Tensor]:
    from diffusers.models.embeddings import get_2d_rotary_pos_embed

    rows: tuple[Tensor, Tensor] = get_2d_rotary_pos_embed(8, ((0, 0), grid), grid, output_type="pt")
    return rows


def hunyuan_dit_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "text_embedding_mask": torch.tensor([[1, 1, 1, 1, 0]] * len(seeds)),
        "encoder_hidden_states_t5": per_sample(seeds, 4, 16, salt=3),
        "text_embedding_mask_t5": torch.ones(len(seeds), 4),
        "image_rotary_emb": rotary_rows(grid),
    }
