"""Latte: `LatteTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Call, Family, Stack, new_like, patch_grid, signature_of
from tokenmerge.models.unet import basic_blocks


class LatteFamily(Family):
    """Blocks over the patches of each frame; those over frames, between them, keep every token."""

    name = "Latte (video)"
    class_name = "LatteTransformer3DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        blocks = basic_blocks(model.transformer_blocks, "transformer_blocks")
        grid = partial(patch_grid, config.patch_size)
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        hidden = kwargs["hidden_states"]
        return Call(kwargs.get("timestep"), signature_of(hidden), interleaved=True)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        shape = config.in_channels, config.video_length, size[0] // 8, size[1] // 8
        return {
            "hidden_states": torch.randn(batch, *shape, **new),
            "encoder_hidden_states": torch.randn(batch, 120, config.caption_channels, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }
