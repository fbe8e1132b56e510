"""Mochi 1: `MochiTransformer3DModel`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Family, Part, Rotary, Stack, blocks_of, new_like, patch_grid
from tokenmerge.models.meta_masks import let_masks_be_true

# Its attention leaves out the padding of each sample's text, so that keys of a sample are as many as its text is long.
PARTS = (Part(("self",), "attn1", text_mask=True, text="last"), Part(("mlp",), "ff"))


class MochiFamily(Family):
    """One stack of joint blocks over frames, rows and columns; positions are learnt for each head."""

    name = "Mochi 1"
    class_name = "MochiTransformer3DModel"
    video = True
    cannot_weigh = "its attention runs sample by sample on texts of different lengths"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        rotary = Rotary("image_rotary_emb", _rows_of_heads_at)
        blocks = blocks_of(model, "transformer_blocks", PARTS, output=0, rotary=rotary)
        grid = partial(patch_grid, (1, config.patch_size, config.patch_size))
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def prepare_meta(self, model: nn.Module) -> None:
        let_masks_be_true(model)
        rope: Any = model.rope
        rope._create_rope = _cos_sin  # its own uses autocast, which the meta device has not

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 19 frames of a video become 4 latent ones, the usual 163 become 28.
        return {
            "hidden_states": torch.randn(batch, config.in_channels, 28, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, config.max_sequence_length, config.text_embed_dim, **new),
            "encoder_attention_mask": torch.ones(batch, config.max_sequence_length, device=new["device"]).bool(),
            "timestep": torch.full((batch,), 500.0, **new),
        }


def _rows_of_heads_at(embedding: tuple[Tensor, Tensor], places: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of (tokens, heads, D), which all samples share."""
    cos, sin = (rows.index_select(0, places.to(rows.device)) for rows in embedding)
    return cos, sin


def _cos_sin(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(3, heads, D), (tokens, 3) -> (tokens, heads, D) each"""
    angles = torch.einsum("nd,dhf->nhf", positions.float(), frequencies.float())
    return angles.cos(), angles.sin()
