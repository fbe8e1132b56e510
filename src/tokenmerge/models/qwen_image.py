"""Qwen-Image and its editing variants: `QwenImageTransformer2DModel`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.arguments import argument_names
from tokenmerge.models.base import Family, Part, Rotary, Stack, new_like, rows_at
from tokenmerge.models.builders import blocks_of


def _image_rows_at(embedding: tuple[Tensor, Tensor], places: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    image, text = embedding
    return rows_at(image, places, tokens), text


ROTARY = Rotary("image_rotary_emb", _image_rows_at)
PARTS = (Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "img_mlp"))


class QwenImageFamily(Family):
    """One stack of joint blocks. The image being made comes first; images to edit follow."""

    name = "Qwen-Image (and Edit, Layered)"
    class_name = "QwenImageTransformer2DModel"
    between_blocks = ("controlnet_block_samples",)

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", PARTS, output=1, rotary=ROTARY)
        two_times = "this model treats tokens of the image and of references by their place"
        return [
            Stack(
                "transformer_blocks",
                "transformer_blocks",
                model,
                grid_of_shapes,
                blocks,
                trailing=_references,
                references=_reference_grids,
                fixed_order=two_times if getattr(model, "zero_cond_t", False) else "",
            )
        ]

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), grid_of_shapes((), kwargs)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 16 pixels a side make a token; 512 leaves room for the longest prompt that pipelines allow by default.
        rows, columns = size[0] // 16, size[1] // 16
        inputs = {
            "hidden_states": torch.randn(batch, rows * columns, config.in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, 512, config.joint_attention_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
            "img_shapes": [[(1, rows, columns)]] * batch,
        }
        # diffusers before 0.39 asks for the lengths of the texts; later ones read them off the embeddings.
        return {**inputs, "txt_seq_lens": [512] * batch} if "txt_seq_lens" in argument_names(model) else inputs


def grid_of_shapes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    return _grids(kwargs)[0]


def _grids(kwargs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Of the image, then of each reference."""
    shape = kwargs["img_shapes"][0]
    shapes = [shape] if isinstance(shape[0], int) else shape
    return [tuple(sides[1:]) if sides[0] == 1 else tuple(sides) for sides in shapes]


def _reference_grids(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(_grids(kwargs)[1:])


def _references(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    tokens: int = kwargs["hidden_states"].shape[1]
    return tokens - math.prod(grid_of_shapes(args, kwargs))
