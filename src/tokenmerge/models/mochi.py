"""Mochi 1: `MochiTransformer3DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary
from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.meta_masks import let_masks_be_true

# Its attention leaves out the padding of each sample's text, so that keys of a sample are as many as its text is long.
PARTS = (Part(("self",), "attn1", text_mask=True, text="last"), Part(("mlp",), "ff"))


def _rows_of_heads_at(embedding: tuple[Tensor, Tensor], places: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of (tokens, heads, D), which all samples share."""
    cos, sin = (rows.index_select(0, places.to(rows.device)) for rows in embedding)
    return cos, sin


class MochiFamily(LatentFamily):
    """One stack of joint blocks over frames, rows and columns; positions are learned for each head."""

    name = "Mochi 1"
    class_name = "MochiTransformer3DModel"
    video = True
    cannot_weigh = "its attention runs sample by sample on texts of different lengths"
    runs = (Run("transformer_blocks", PARTS, output=0, rotary=Rotary("image_rotary_emb", _rows_of_heads_at)),)
    frames = 28  # of 163
    text = "max_sequence_length", "text_embed_dim"
    text_mask = "encoder_attention_mask"

    def prepare_meta(self, model: nn.Module) -> None:
        let_masks_be_true(model)
        rope: Any = model.rope
        rope._create_rope = _cos_sin  # its own uses autocast, which the meta device has not


def _cos_sin(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(3, heads, D), (tokens, 3) -> (tokens, heads, D) each"""
    angles = torch.einsum("nd,dhf->nhf", positions.float(), frequencies.float())
    return angles.cos(), angles.sin()
