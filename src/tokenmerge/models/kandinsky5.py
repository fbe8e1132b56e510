"""Kandinsky 5, video and image: `Kandinsky5Transformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import (
    Call,
    Family,
    Part,
    Rotary,
    Stack,
    blocks_of,
    new_like,
    rows_at,
    signature_of,
)

PARTS = (
    Part(("self",), "self_attention", mask="inside"),
    Part(("cross",), "cross_attention"),
    Part(("mlp",), "feed_forward"),
)
ROTARY = Rotary("rope", rows_at, attention_argument="rotary_emb", per_sample=True)


class Kandinsky5Family(Family):
    """One stack of blocks over frames, rows and columns; images have one frame."""

    name = "Kandinsky 5 (video, image)"
    class_name = "Kandinsky5Transformer3DModel"
    video = True
    conditions = ("encoder_hidden_states", "pooled_projections")

    def stacks(self, model: nn.Module) -> list[Stack]:
        name = "visual_transformer_blocks"
        patch = tuple(model.config.patch_size)  # type: ignore[union-attr, arg-type]

        def grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
            sides = kwargs["hidden_states"].shape[1:4]  # channels come last
            return tuple(side // length for side, length in zip(sides, patch, strict=True))

        return [Stack(name, name, model, grid, blocks_of(model, name, PARTS, rotary=ROTARY))]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        if kwargs.get("sparse_params") is not None:
            raise MergeRuntimeError(
                "this call uses Kandinsky's sparse attention (sparse_params), which needs every token in an order of "
                "its own: set attention_type='regular' in the model's config, or take merging out with handle.remove()."
            )
        return Call(kwargs.get("timestep"), signature_of(kwargs["hidden_states"]))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 121 frames of a video are 31 latent ones, 256 is the length of a prompt.
        frames, rows, columns = 31, size[0] // 16, size[1] // 16
        channels = 2 * config.in_visual_dim + 1 if config.visual_cond else config.in_visual_dim
        indices = [torch.arange(count, device=new["device"]) for count in (frames, rows, columns, 256)]
        return {
            "hidden_states": torch.randn(batch, frames, rows * 2, columns * 2, channels, **new),
            "encoder_hidden_states": torch.randn(batch, 256, config.in_text_dim, **new),
            "pooled_projections": torch.randn(batch, config.in_text_dim2, **new),
            "timestep": torch.full((batch,), 500.0, **new),
            "visual_rope_pos": indices[:3],
            "text_rope_pos": indices[3],
        }
