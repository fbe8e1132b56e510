"""Flux.3: `Flux3Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Family, Part, Rotary, Stack, cos_sin_at, new_like, rows_at
from tokenmerge.models.builders import blocks_of
from tokenmerge.models.flux import with_values
from tokenmerge.models.position_ids import grid_of_ids, image_ids

# Attention and MLP run side by side on one normalised sequence.
PARTS = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff", text="first"))


class Flux3Family(Family):
    """Blocks on the image alone, then blocks that read text too; references stand behind the image, and stay."""

    name = "Flux.3"
    class_name = "Flux3Transformer2DModel"
    positions = ("img_ids", "txt_ids", "image_cond_ids")

    def stacks(self, model: nn.Module) -> list[Stack]:
        rotary = Rotary(("image_rotary_emb", "temb_mod"), _rows_at, attention_argument="image_rotary_emb")
        alone = blocks_of(model, "mode_blocks.image", PARTS, rotary=rotary)
        joint = blocks_of(model, "single_transformer_blocks", PARTS, output=1, rotary=rotary)
        return [
            Stack("mode_blocks.image", "mode_blocks.image", model, _grid, alone),
            Stack("single_transformer_blocks", "single", model, _grid, joint, trailing=_references),
        ]

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), _grid((), kwargs), _references((), kwargs)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 16 pixels a side make a token; 512 is the length of a prompt.
        rows, columns = size[0] // 16, size[1] // 16
        inputs = {
            "hidden_states": torch.randn(batch, rows * columns, config.in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, 512, config.joint_attention_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
            "img_ids": with_values(image_ids(rows, columns, 4), new["device"]),
            "txt_ids": with_values(torch.zeros(512, 4), new["device"]),
        }
        return {**inputs, "target_timestep": torch.full((batch,), 0.4, **new)} if config.flow_map else inputs


def _rows_at(embedding: tuple[Any, Any], places: Tensor, tokens: int) -> tuple[Any, Any]:
    """Of a block the position embeddings and the modulation, which has a row for each token; of attention the first."""
    first, second = embedding
    if isinstance(first, Tensor):
        return cos_sin_at((first, second), places, tokens)
    return cos_sin_at(first, places, tokens), rows_at(second, places, tokens)


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    grid: tuple[int, ...] = grid_of_ids(kwargs["img_ids"])
    return grid


def _references(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    references = kwargs.get("image_cond_hidden_states")
    return 0 if references is None else int(references.shape[1])
