"""Qwen-Image and its editing variants: `QwenImageTransformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from tokenmerge.models.arguments import argument_names
from tokenmerge.models.base import Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import PackedFamily, Run


def _image_rows_at(embedding: tuple[Tensor, Tensor], places: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    image, text = embedding
    return rows_at(image, places, tokens), text


ROTARY = Rotary("image_rotary_emb", _image_rows_at)
PARTS = (Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "img_mlp"))
TWO_TIMES = "this model treats tokens of the image and of references by their place"


class QwenImageFamily(PackedFamily):
    """One stack of joint blocks. The image being made comes first; images to edit follow."""

    name = "Qwen-Image (and Edit, Layered)"
    class_name = "QwenImageTransformer2DModel"
    between_blocks = ("controlnet_block_samples",)
    runs = (Run("transformer_blocks", PARTS, output=1, rotary=ROTARY),)
    text = 512, "joint_attention_dim"  # room for the longest prompt that pipelines allow by default

    def stacks(self, model: nn.Module) -> list[Stack]:
        fixed_order = TWO_TIMES if getattr(model, "zero_cond_t", False) else ""
        more = {"trailing": self.behind, "references": _reference_grids, "fixed_order": fixed_order}
        return [self.stack(model, *self.runs, **more)]

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        return _grids(kwargs)[0]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        inputs["img_shapes"] = [[(1, *self.example_grid(size))]] * batch
        # diffusers before 0.39 asks for the lengths of the texts; later ones read them off the embeddings.
        if "txt_seq_lens" in argument_names(model):
            inputs["txt_seq_lens"] = [self.text[0]] * batch
        return inputs


def _grids(kwargs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Of the image, then of each reference."""
    shape = kwargs["img_shapes"][0]
    shapes = [shape] if isinstance(shape[0], int) else shape
    return [tuple(sides[1:]) if sides[0] == 1 else tuple(sides) for sides in shapes]


def _reference_grids(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(_grids(kwargs)[1:])
