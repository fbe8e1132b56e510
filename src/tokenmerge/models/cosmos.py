"""Cosmos Predict 1, 2 and 2.5, video and image: `CosmosTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at, new_like, rows_at
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (Part(("self",), "attn1", mask="inside"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))


def _positions_at(embedding: tuple[Any, ...], places: Tensor, tokens: int) -> tuple[Any, ...]:
    """(cosines, sines) of (tokens, D); and in a block also what it adds to its tokens, (B, tokens, C), or None."""
    rotary, *learned = embedding
    moved = (None if rows is None else rows_at(rows, places, tokens) for rows in learned)
    return cos_sin_at(rotary, places, tokens), *moved


ROTARY = Rotary(("image_rotary_emb", "extra_pos_emb"), _positions_at, attention_argument=("image_rotary_emb",))


class CosmosFamily(LatentFamily):
    """One stack of blocks over frames, rows and columns. Predict 1 adds learned positions in each block."""

    name = "Cosmos (Predict 1, 2, 2.5)"
    class_name = "CosmosTransformer3DModel"
    video = True
    timestep_logarithmic = True  # for Predict 1; for later ones it falls, too
    runs = (Run("transformer_blocks", PARTS, rotary=ROTARY),)
    between_blocks = ("block_controlnet_hidden_states",)
    frames = 16  # of 121
    time = 0.5
    text = 512, "text_embed_dim"

    def has_time_per_token(self, kwargs: Mapping[str, Any]) -> bool:
        return bool(kwargs["timestep"].dim() > 1)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = {**super().example_inputs(model, size, batch), "fps": 24}
        if model.config.concat_padding_mask:  # type: ignore[union-attr]
            inputs["padding_mask"] = torch.zeros(1, 1, *size, **new_like(model))
        return inputs
