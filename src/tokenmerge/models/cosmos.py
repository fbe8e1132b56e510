"""Cosmos Predict 1, 2 and 2.5, video and image: `CosmosTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import (
    TIME_PER_TOKEN,
    Call,
    Family,
    Part,
    Rotary,
    Stack,
    blocks_of,
    cos_sin_at,
    new_like,
    patch_grid,
    rows_at,
    signature_of,
)

PARTS = (Part(("self",), "attn1", mask="inside"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))


class CosmosFamily(Family):
    """One stack of blocks over frames, rows and columns. Predict 1 adds learnt positions in each block."""

    name = "Cosmos (Predict 1, 2, 2.5)"
    class_name = "CosmosTransformer3DModel"
    video = True
    timestep_logarithmic = True  # for Predict 1; for later ones it falls as well

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        rotary = Rotary(("image_rotary_emb", "extra_pos_emb"), _positions_at, attention_argument=("image_rotary_emb",))
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=rotary)
        grid = partial(patch_grid, tuple(config.patch_size))
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        timestep = kwargs["timestep"]
        return Call(
            timestep=timestep,
            signature=signature_of(kwargs["hidden_states"]),
            fixed_order=TIME_PER_TOKEN if timestep.dim() > 1 else "",
            interleaved=kwargs.get("block_controlnet_hidden_states") is not None,
        )

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 121 frames of a video are 16 latent ones, 512 is the length of a prompt.
        channels = config.in_channels
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, channels, 16, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, 512, config.text_embed_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
            "fps": 24,
        }
        if config.concat_padding_mask:
            inputs["padding_mask"] = torch.zeros(1, 1, *size, **new)
        return inputs


def _positions_at(embedding: tuple[Any, ...], places: Tensor, tokens: int) -> tuple[Any, ...]:
    """(cosines, sines) of (tokens, D); and in a block also what it adds to its tokens, (B, tokens, C), or None."""
    rotary, *learnt = embedding
    moved = (None if rows is None else rows_at(rows, places, tokens) for rows in learnt)
    return cos_sin_at(rotary, places, tokens), *moved
