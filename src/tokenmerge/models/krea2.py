"""Krea 2: `Krea2Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Family, Part, Rotary, Stack, cos_sin_at, new_like
from tokenmerge.models.builders import blocks_of
from tokenmerge.models.flux import with_values
from tokenmerge.models.position_ids import grid_of_ids, image_ids

PARTS = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff", text="first"))
ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class Krea2Family(Family):
    """One stack of blocks on text and image in one sequence, text first."""

    name = "Krea 2"
    class_name = "Krea2Transformer2DModel"
    positions = ("position_ids",)

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=ROTARY)
        return [Stack("transformer_blocks", "transformer_blocks", model, _grid, blocks, trailing=_behind)]

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), _grid((), kwargs)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 16 pixels a side make a token; 512 is the length of a prompt, of which several layers are read.
        rows, columns, text = size[0] // 16, size[1] // 16, 512
        ids = torch.cat([torch.zeros(text, 3), image_ids(rows, columns, 3)])
        return {
            "hidden_states": torch.randn(batch, rows * columns, config.in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, text, config.num_text_layers, config.text_hidden_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
            "position_ids": with_values(ids, new["device"]),
        }


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    grid: tuple[int, ...] = grid_of_ids(kwargs["position_ids"], kwargs["encoder_hidden_states"].shape[1])
    return grid


def _behind(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    rows, columns = _grid(args, kwargs)
    tokens: int = kwargs["hidden_states"].shape[1]
    return tokens - rows * columns
