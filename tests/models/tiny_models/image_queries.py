"""The smallest image transformers of whose attention the image alone is a query, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt, steps


@cache
def padded(batch: int) -> Tensor:
    """(B, 5): the last token of text is padding."""
    mask = torch.ones(batch, 5, dtype=torch.bool)
    mask[:, 4] = False
    return mask


def without_zeros(model: nn.Module) -> nn.Module:
    """Layers that begin at zero, so that blocks do nothing yet, get weights too."""
    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():
            nn.init.normal_(weight, std=0.2)
    return model


def prx() -> nn.Module:
    from diffusers import PRXTransformer2DModel

    model: nn.Module = PRXTransformer2DModel(
        in_channels=4, context_in_dim=12, hidden_size=16, mlp_ratio=2.0, num_heads=2, depth=2, axes_dim=[4, 4]
    )
    return without_zeros(model)


def prx_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "attention_mask": padded(len(seeds)),
    }


def nucleus() -> nn.Module:
    """The middle one of three blocks has experts."""
    from diffusers import NucleusMoEImageTransformer2DModel

    model: nn.Module = NucleusMoEImageTransformer2DModel(
        in_channels=8,
        out_channels=2,
        num_layers=5,
        attention_head_dim=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        joint_attention_dim=12,
        axes_dims_rope=(4, 4, 4),
        mlp_ratio=2.0,
        num_experts=4,
        moe_intermediate_dim=8,
        capacity_factors=2.0,
    )
    for name, weight in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):  # left empty
            nn.init.normal_(weight, std=0.2)
    return model


def nucleus_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, grid[0] * grid[1], 8),
        "img_shapes": [(1, *grid)] * len(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_hidden_states_mask": padded(len(seeds)),
        "timestep": steps(seeds),
    }


def qwen_image21() -> nn.Module:
    from diffusers import QwenImage21Transformer2DModel

    return QwenImage21Transformer2DModel(
        in_channels=8,
        out_channels=8,
        num_layers=2,
        attention_head_dim=12,
        num_attention_heads=2,
        context_in_dim=12,
        mlp_ratio=2,
        axes_dims_rope=(4, 4, 4),
    )


@cache
def slots(batch: int, *images: int) -> Tensor:
    """(B, T): three tokens of text before each image; one slot stands for four tokens of it."""
    runs = [[False] * 3 + [True] * (tokens // 4) for tokens in images]
    return torch.tensor([[slot for run in runs for slot in run]]).expand(batch, -1)


def qwen_image21_inputs(seeds: Sequence[int], grid: Grid, reference: Grid = ()) -> dict[str, Any]:
    """`reference`: the grid of an image to edit, which stands before the one that is made."""
    shapes = [(1, *reference), (1, *grid)] if reference else [(1, *grid)]
    tokens = [rows * columns for _, rows, columns in shapes]
    mask = slots(len(seeds), *tokens)
    text = mask.shape[1] - tokens[-1] // 4
    return {
        "hidden_states": per_sample(seeds, sum(tokens), 8),
        "encoder_hidden_states": prompt(seeds, text),
        "timestep": steps(seeds),
        "img_shapes": [shapes] * len(seeds),
        "img_mask": mask,
    }
