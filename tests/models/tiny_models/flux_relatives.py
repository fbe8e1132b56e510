"""The smallest image transformers made after Flux.1, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt
from tiny_models.joint_attention import flux_inputs

SIZES: dict[str, Any] = {
    "in_channels": 8,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 12,
    "num_attention_heads": 2,
    "joint_attention_dim": 12,
    "axes_dims_rope": (4, 4, 4),
}


def inputs_of(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    inputs = flux_inputs(seeds, grid, guidance=False)
    del inputs["pooled_projections"]
    return inputs


def chroma() -> nn.Module:
    from diffusers import ChromaTransformer2DModel

    return ChromaTransformer2DModel(
        **SIZES, approximator_num_channels=8, approximator_hidden_dim=12, approximator_layers=1
    )


@cache
def padded_text(seeds: tuple[int, ...], tokens: int) -> Tensor:
    mask = torch.ones(len(seeds), 5 + tokens, dtype=torch.bool)
    mask[:, 4] = False
    return mask


def chroma_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    """The last token of text is padding."""
    return {**inputs_of(seeds, grid), "attention_mask": padded_text(tuple(seeds), grid[0] * grid[1])}


def longcat_image() -> nn.Module:
    from diffusers import LongCatImageTransformer2DModel

    return LongCatImageTransformer2DModel(**SIZES, pooled_projection_dim=12)


def ovis_image() -> nn.Module:
    from diffusers import OvisImageTransformer2DModel

    return OvisImageTransformer2DModel(**SIZES, out_channels=8)


def bria() -> nn.Module:
    from diffusers import BriaTransformer2DModel

    return BriaTransformer2DModel(**SIZES)


def bria_fibo() -> nn.Module:
    from diffusers import BriaFiboTransformer2DModel

    return BriaFiboTransformer2DModel(**SIZES, text_encoder_dim=12)


@cache
def masked_text(batch: int, tokens: int) -> Tensor:
    """(B, 1, L, L): no token reads the last one of text, as the pipeline says it."""
    mask = torch.zeros(batch, 1, 5 + tokens, 5 + tokens)
    mask[..., 4] = float("-inf")
    return mask


def bria_fibo_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        **inputs_of(seeds, grid),
        "text_encoder_layers": [per_sample(seeds, 5, 12, salt=salt) for salt in (5, 6, 7, 8)],
        "joint_attention_kwargs": {"attention_mask": masked_text(len(seeds), grid[0] * grid[1])},
        "encoder_hidden_states": prompt(seeds),
    }
