"""Allegro: `AllegroTransformer3DModel`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Family, Part, Rotary, Stack, blocks_of, new_like, patch_grid

PARTS = (Part(("self",), "attn1", mask="3d"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))


class AllegroFamily(Family):
    """One stack of blocks over frames, rows and columns."""

    name = "Allegro (video)"
    class_name = "AllegroTransformer3DModel"
    video = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        rotary = Rotary("image_rotary_emb", _positions_at, per_sample=True)
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=rotary)
        grid = partial(patch_grid, (config.patch_size_t, config.patch_size, config.patch_size))
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 88 frames of a video are 22 latent ones, 512 is the length of a prompt.
        frames, rows, columns = 22, size[0] // 16, size[1] // 16
        third = config.attention_head_dim // 3
        tables = tuple((torch.randn(n, third, **new), torch.randn(n, third, **new)) for n in (frames, rows, columns))
        sides = (torch.arange(side, device=new["device"]) for side in (frames, rows, columns))
        positions = tuple(axis.reshape(1, -1) for axis in torch.meshgrid(*sides, indexing="ij"))
        return {
            "hidden_states": torch.randn(batch, config.in_channels, frames, rows * 2, columns * 2, **new),
            "encoder_hidden_states": torch.randn(batch, 512, config.caption_channels, **new),
            "timestep": torch.full((batch,), 500.0, **new),
            "image_rotary_emb": (tables, positions),
        }


def _positions_at(embedding: tuple[Any, Any], places: Tensor, tokens: int) -> tuple[Any, Any]:
    """Tables of cosines and sines for each axis, and (1, tokens) positions in them."""
    tables, positions = embedding
    # Samples that have been given positions of their own before keep them.
    moved = tuple(_each_at(axis, places if places.dim() == 2 else places[None]) for axis in positions)
    return tables, moved


def _each_at(axis: Tensor, places: Tensor) -> Tensor:
    samples = max(axis.shape[0], places.shape[0])
    return axis.expand(samples, -1).gather(1, places.to(axis.device).expand(samples, -1))
