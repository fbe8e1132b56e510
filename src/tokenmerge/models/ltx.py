"""LTX-Video: `LTXVideoTransformer3DModel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import TIME_PER_TOKEN, Call, Family, Part, Rotary, Stack, blocks_of, cos_sin_at, new_like

PARTS = (Part(("self",), "attn1", mask="3d"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))
ROTARY = Rotary("image_rotary_emb", cos_sin_at, per_sample=True)


class LTXFamily(Family):
    """One stack of blocks over frames, rows and columns. Tokens of conditions stand in front and are never merged."""

    name = "LTX-Video"
    class_name = "LTXVideoTransformer3DModel"
    video = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=ROTARY)
        return [Stack("transformer_blocks", "transformer_blocks", model, grid_of_video, blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        timestep = kwargs["timestep"]
        per_token = timestep.dim() > 1 and timestep.shape[1] > 1
        return dataclasses.replace(super().read_call(args, kwargs), fixed_order=TIME_PER_TOKEN if per_token else "")

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), grid_of_video((), kwargs)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # LTX shrinks an image by 32 a side and 161 frames to 21; 128 is the length of a prompt.
        frames, rows, columns = 21, size[0] // 32, size[1] // 32
        return {
            "hidden_states": torch.randn(batch, frames * rows * columns, config.in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, 128, config.caption_channels, **new),
            "encoder_attention_mask": torch.ones(batch, 128, **new),
            "timestep": torch.full((batch,), 500.0, **new),
            "num_frames": frames,
            "height": rows,
            "width": columns,
        }


def grid_of_video(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(kwargs[name] for name in ("num_frames", "height", "width"))
