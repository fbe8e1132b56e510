"""Latte: `LatteTransformer3DModel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from tokenmerge.models.base import Call
from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.unet import basic_parts


class LatteFamily(LatentFamily):
    """Blocks over the patches of each frame; those over frames, between them, keep every token."""

    name = "Latte (video)"
    class_name = "LatteTransformer3DModel"
    runs = (Run("transformer_blocks", basic_parts),)
    text = 120, "caption_channels"

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return dataclasses.replace(super().read_call(args, kwargs), interleaved=True)

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, C, F, H, W)"""
        config: Any = model.config
        return self.noise(model, batch, config.in_channels, config.video_length, size[0] // 8, size[1] // 8)
