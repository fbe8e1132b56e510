"""Allegro: `AllegroTransformer3DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, new_like
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (Part(("self",), "attn1", mask="3d"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))


def _positions_at(embedding: tuple[Any, Any], places: Tensor, tokens: int) -> tuple[Any, Any]:
    """Tables of cosines and sines for each axis, and (1, tokens) positions in them."""
    tables, positions = embedding
    # Samples that have been given positions of their own before keep them.
    moved = tuple(_each_at(axis, places if places.dim() == 2 else places[None]) for axis in positions)
    return tables, moved


def _each_at(axis: Tensor, places: Tensor) -> Tensor:
    samples = max(axis.shape[0], places.shape[0])
    return axis.expand(samples, -1).gather(1, places.to(axis.device).expand(samples, -1))


class AllegroFamily(LatentFamily):
    """One stack of blocks over frames, rows and columns."""

    name = "Allegro (video)"
    class_name = "AllegroTransformer3DModel"
    video = True
    runs = (Run("transformer_blocks", PARTS, rotary=Rotary("image_rotary_emb", _positions_at, per_sample=True)),)
    frames = 22  # of 88
    text = 512, "caption_channels"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        inputs = super().example_inputs(model, size, batch)
        grid = self.frames, size[0] // 16, size[1] // 16
        third = config.attention_head_dim // 3
        tables = tuple((torch.randn(n, third, **new), torch.randn(n, third, **new)) for n in grid)
        sides = (torch.arange(side, device=new["device"]) for side in grid)
        positions = tuple(axis.reshape(1, -1) for axis in torch.meshgrid(*sides, indexing="ij"))
        return {**inputs, "image_rotary_emb": (tables, positions)}
