"""Qwen-Image and its editing models in ComfyUI: `QwenImageTransformer2DModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.integrations.comfyui.families.flux import heads_rows_at
from tokenmerge.models.base import TIME_PER_TOKEN, Part, Rotary, Stack, blocks_of

PARTS = Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "img_mlp")
ROTARY = Rotary("image_rotary_emb", heads_rows_at, per_sample=True)


class ComfyQwenImageFamily(ComfyFamily):
    """Text and image in one attention; reference images behind the image stay whole."""

    name = "Qwen-Image in ComfyUI"
    class_name = "QwenImageTransformer2DModel"

    def stacks(self, model: Any) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", PARTS, output=1, rotary=ROTARY)
        grid = partial(_grid, model.patch_size)
        return [Stack("blocks", "blocks", model, grid, blocks, trailing=partial(_references, model.patch_size))]

    def shape_of(self, kwargs: Mapping[str, Any]) -> Hashable:
        return tuple(tuple(reference.shape) for reference in kwargs.get("ref_latents") or ())

    def fixed_order(self, kwargs: Mapping[str, Any]) -> str:
        clean = kwargs.get("ref_latents_method") == "index_timestep_zero"
        return TIME_PER_TOKEN if clean and kwargs.get("ref_latents") else ""


def _grid(patch: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers or frames count as an axis, unless there is only one."""
    latent = kwargs["x"]
    sides = tuple(-(-length // patch) for length in latent.shape[-2:])
    layers = latent.shape[-3]
    return (layers, *sides) if layers > 1 else sides


def _references(patch: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return sum(prod(_grid(patch, (), {"x": reference})) for reference in kwargs.get("ref_latents") or ())
