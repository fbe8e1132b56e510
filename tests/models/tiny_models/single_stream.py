"""The smallest image transformers that hold text and image in one sequence throughout, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, prompt, steps


def z_image() -> nn.Module:
    from diffusers import ZImageTransformer2DModel

    return ZImageTransformer2DModel(
        in_channels=4,
        dim=24,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=12,
        axes_dims=[4, 4, 4],
        axes_lens=[600, 64, 64],
    )


@cache
def texts_of_each(seeds: tuple[int, ...], tokens: int) -> tuple[Tensor, ...]:
    return prompt(seeds, tokens).unbind()


def z_image_inputs(seeds: Sequence[int], grid: Grid, texts: int = 5) -> dict[str, Any]:
    """`texts`: tokens of each, before the model pads them to 32."""
    return {
        "x": list(per_sample(seeds, 4, 1, grid[0] * 2, grid[1] * 2)),
        "t": steps(seeds),
        "cap_feats": list(texts_of_each(tuple(seeds), texts)),
    }


def lumina2() -> nn.Module:
    from diffusers import Lumina2Transformer2DModel

    return Lumina2Transformer2DModel(
        sample_size=16,
        in_channels=4,
        hidden_size=24,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        axes_dim_rope=(4, 4, 4),
        axes_lens=(300, 64, 64),
        cap_feat_dim=12,
    )


@cache
def text_mask(lengths: tuple[int, ...], longest: int) -> Tensor:
    """(B, longest), 1 where a token is the text's; the very same tensor each time."""
    return (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()


def lumina2_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    """Texts of 3 to 5 tokens, so that images begin at different places."""
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": text_mask(tuple(5 - seed % 3 for seed in seeds), 5),
    }
