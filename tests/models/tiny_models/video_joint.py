"""The smallest video transformers whose attention reads text and video together, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt, steps


def cogvideox(**more: Any) -> nn.Module:
    from diffusers import CogVideoXTransformer3DModel

    return CogVideoXTransformer3DModel(**COGVIDEOX, **more)


def consisid(**more: Any) -> nn.Module:
    from diffusers import ConsisIDTransformer3DModel

    return ConsisIDTransformer3DModel(**COGVIDEOX, **more)


COGVIDEOX: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 8,
    "text_embed_dim": 12,
    "num_layers": 2,
    "sample_width": 8,
    "sample_height": 8,
    "sample_frames": 5,
    "max_text_seq_length": 5,
    "use_rotary_positional_embeddings": True,
}


@cache
def rotary_rows(tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, as a pipeline passes them: the very same tensors at every step."""
    angles = torch.arange(tokens)[:, None] * torch.linspace(0.05, 0.5, width)
    return angles.cos(), angles.sin()


def cogvideox_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, grid[0], 4, grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "image_rotary_emb": rotary_rows(grid[0] * grid[1] * grid[2], 8),
    }


def mochi() -> nn.Module:
    from diffusers import MochiTransformer3DModel

    return MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=4,
        text_embed_dim=16,
        time_embed_dim=4,
        max_sequence_length=5,
    )


@cache
def long_prompt(seeds: tuple[int, ...]) -> Tensor:
    """(len(seeds), 5, 16): its eight heads of pooling need more channels than other models."""
    return per_sample(seeds, 5, 16, salt=1)


def mochi_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": long_prompt(tuple(seeds)),
        "encoder_attention_mask": torch.tensor([[True] * 5] * len(seeds)),
    }


def easyanimate(**more: Any) -> nn.Module:
    from diffusers import EasyAnimateTransformer3DModel

    return EasyAnimateTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        patch_size=2,
        num_layers=2,
        mmdit_layers=2,
        time_embed_dim=8,
        text_embed_dim=12,
        sample_width=8,
        sample_height=8,
        **more,
    )


def easyanimate_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
    }


def hunyuan_video15() -> nn.Module:
    from diffusers import HunyuanVideo15Transformer3DModel

    return HunyuanVideo15Transformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=12,
        text_embed_2_dim=6,
        image_embed_dim=4,
        rope_axes_dim=(2, 4, 2),
    )


def hunyuan_video15_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, *grid),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[True, True, True, True, False]] * len(seeds)),
        "encoder_hidden_states_2": per_sample(seeds, 3, 6, salt=2),
        "encoder_attention_mask_2": torch.tensor([[True, True, False]] * len(seeds)),
        "image_embeds": per_sample(seeds, 2, 4, salt=3),
    }
