"""CogVideoX 1.0 and 1.5, and ConsisID on top of it: `CogVideoXTransformer3DModel`, `ConsisIDTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import (
    Call,
    Family,
    Part,
    Rotary,
    Stack,
    blocks_of,
    cos_sin_at,
    new_like,
    signature_of,
)

PARTS = (Part(("self",), "attn1", mask="3d", text="first"), Part(("mlp",), "ff", text="first"))
ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class CogVideoXFamily(Family):
    """One stack of joint blocks over frames, rows and columns; text stands before the video."""

    name = "CogVideoX (1.0, 1.5)"
    class_name = "CogVideoXTransformer3DModel"
    video = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        patch = getattr(config, "patch_size_t", None) or 1, config.patch_size
        blocks = blocks_of(model, "transformer_blocks", PARTS, output=0, rotary=ROTARY)
        return [Stack("transformer_blocks", "transformer_blocks", model, partial(_grid, *patch), blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 49 frames of a video are 13 latent ones, 226 the length of a prompt.
        grid = 13, size[0] // 16, size[1] // 16
        depth = getattr(config, "patch_size_t", None) or 1
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, grid[0] * depth, config.in_channels, grid[1] * 2, grid[2] * 2, **new),
            "encoder_hidden_states": torch.randn(batch, config.max_text_seq_length, config.text_embed_dim, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }
        if config.use_rotary_positional_embeddings:
            rows = torch.randn(grid[0] * grid[1] * grid[2], config.attention_head_dim, **new)
            inputs["image_rotary_emb"] = (rows.cos(), rows.sin())
        if getattr(config, "ofs_embed_dim", None) is not None:
            inputs["ofs"] = torch.full((1,), 2.0, **new)
        return inputs


class ConsisIDFamily(CogVideoXFamily):
    """As CogVideoX. With a face to follow, something is added to the tokens between blocks."""

    name = "ConsisID"
    class_name = "ConsisIDTransformer3DModel"

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return Call(
            timestep=kwargs.get("timestep"),
            signature=signature_of(kwargs["hidden_states"]),
            interleaved=kwargs.get("id_cond") is not None,
        )


def _grid(depth: int, side: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    frames, _, height, width = kwargs["hidden_states"].shape[1:]
    return frames // depth, height // side, width // side
