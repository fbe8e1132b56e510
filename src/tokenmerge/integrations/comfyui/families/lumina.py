"""Lumina-Image 2.0 and Z-Image in ComfyUI: `NextDiT`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.integrations.comfyui.families.flux import patches
from tokenmerge.models.base import TIME_PER_TOKEN, Part, Rotary, Stack, blocks_of, rows_at

PARTS = (
    Part(("self",), "attention", mask="4d", mask_argument="x_mask", text="first"),
    Part(("mlp",), "feed_forward", text="first"),
)
ROTARY = Rotary("freqs_cis", rows_at, per_sample=True)


class ComfyLuminaFamily(ComfyFamily):
    """Text, the image, and what fills it up to a multiple, in one sequence. Only the tokens of the image are merged."""

    name = "Lumina-Image 2.0 and Z-Image in ComfyUI"
    class_name = "NextDiT"
    timestep = "timesteps"

    def stacks(self, model: Any) -> list[Stack]:
        blocks = blocks_of(model, "layers", PARTS, rotary=ROTARY)
        grid = partial(patches, model.patch_size)
        return [Stack("layers", "layers", model, grid, blocks, trailing=partial(_filling, model))]

    def fixed_order(self, kwargs: Mapping[str, Any]) -> str:
        return TIME_PER_TOKEN if kwargs.get("ref_latents") else ""


def _filling(model: Any, args: Any, kwargs: Mapping[str, Any]) -> int:
    multiple = getattr(model, "pad_tokens_multiple", None)
    return -prod(patches(model.patch_size, (), kwargs)) % multiple if multiple else 0
