"""The smallest image transformers whose attention reads text and image together, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from tiny_models.base import DIFFUSERS, Grid, no_places, per_sample, places, prompt, steps


def flux(guidance: bool = True, channels: int = 8, out_channels: int | None = None) -> nn.Module:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=channels,
        out_channels=out_channels,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=12,
        pooled_projection_dim=8,
        guidance_embeds=guidance,
        axes_dims_rope=(4, 4, 4),
    )


def flux_inputs(
    seeds: Sequence[int], grid: Grid, text: int = 5, channels: int = 8, guidance: bool = True, references: Grid = ()
) -> dict[str, Any]:
    """`references`: the grid of a reference image, whose tokens come behind, as in Kontext."""
    img_ids = places(3, grid, references)
    inputs = {
        "hidden_states": per_sample(seeds, len(img_ids), channels),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds, text),
        "pooled_projections": per_sample(seeds, 8, salt=2),
        "img_ids": img_ids,
        "txt_ids": no_places(text, 3),
    }
    return {**inputs, "guidance": torch.full((len(seeds),), 3.5)} if guidance else inputs


def sd3() -> nn.Module:
    """Of SD 3.5's kind: the first blocks have a second attention."""
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=24,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        attention_head_dim=4,
        num_attention_heads=2,
        joint_attention_dim=12,
        caption_projection_dim=8,
        pooled_projection_dim=8,
        pos_embed_max_size=24,
        dual_attention_layers=(0, 1),
        qk_norm="rms_norm",
    )


def sd3_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "pooled_projections": per_sample(seeds, 8, salt=2),
    }


def flux2() -> nn.Module:
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        in_channels=8,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        timestep_guidance_channels=8,
        mlp_ratio=2.0,
        axes_dims_rope=(2, 2, 2, 2),
    )


@cache
def places_of_each(batch: int, grid: Grid, references: Grid) -> Tensor:
    return places(4, grid, references, image=10.0).expand(batch, -1, -1)


def flux2_inputs(seeds: Sequence[int], grid: Grid, references: Grid = ()) -> dict[str, Any]:
    img_ids = places_of_each(len(seeds), grid, references)
    return {
        "hidden_states": per_sample(seeds, img_ids.shape[1], 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "img_ids": img_ids,
        "txt_ids": no_places(len(seeds), 5, 4),
        "guidance": torch.full((len(seeds),), 4.0),
    }


def qwen_image(**more: Any) -> nn.Module:
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        in_channels=8,
        out_channels=4,
        num_layers=3,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=12,
        axes_dims_rope=(4, 4, 4),
        **more,
    )


def qwen_inputs(seeds: Sequence[int], grid: Grid, references: Grid = ()) -> dict[str, Any]:
    shapes = [(1, *grid), (1, *references)] if references else [(1, *grid)]
    mask = torch.ones(len(seeds), 5, dtype=torch.bool)
    mask[:, 4] = False  # the last token of text is padding
    inputs = {
        "hidden_states": per_sample(seeds, sum(rows * columns for _, rows, columns in shapes), 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_hidden_states_mask": mask,
        "img_shapes": [shapes] * len(seeds),
    }
    return inputs if Version("0.37") <= DIFFUSERS else {**inputs, "txt_seq_lens": [5] * len(seeds)}


def auraflow() -> nn.Module:
    from diffusers import AuraFlowTransformer2DModel

    return AuraFlowTransformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_mmdit_layers=2,
        num_single_dit_layers=2,
        attention_head_dim=4,
        num_attention_heads=2,
        joint_attention_dim=12,
        caption_projection_dim=8,
        pos_embed_max_size=1024,
    )


def auraflow_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
    }
