"""Sana: `SanaTransformer2DModel`, of which only cross-attention can run on fewer tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import (
    Block,
    Call,
    Family,
    Part,
    Stack,
    new_like,
    patch_grid,
    signature_of,
)

NEEDS_GRID = "Sana's self-attention is linear already and its MLP has convolutions over the whole grid"


class SanaFamily(Family):
    """Self-attention is linear in the number of tokens, and the MLP is convolutional, so both keep every token."""

    name = "Sana"
    class_name = "SanaTransformer2DModel"
    pixels = 32
    cannot_weigh = "it has no softmax self-attention"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        blocks = tuple(
            Block(f"transformer_blocks.{index}", module, (Part(("cross",), "attn2"),))
            for index, module in enumerate(model.transformer_blocks)  # type: ignore[arg-type]
        )
        grid = partial(patch_grid, config.patch_size)
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks, fixed_order=NEEDS_GRID)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        hidden = kwargs["hidden_states"]
        return Call(kwargs.get("timestep"), signature_of(hidden))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        rows, columns = size[0] // self.pixels, size[1] // self.pixels
        # 300 is the length of a prompt.
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, config.in_channels, rows, columns, **new),
            "encoder_hidden_states": torch.randn(batch, 300, config.caption_channels, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }
        if config.guidance_embeds:
            inputs["guidance"] = torch.full((batch,), 4.5, **new)
        return inputs
