"""Flux.1 and Flux.2 in ComfyUI: `Flux`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.models.base import TIME_PER_TOKEN, Block, Part, Rotary, Stack, rows_at
from tokenmerge.models.flux import OF_BLOCKS, SKIPPED


class ComfyFluxFamily(ComfyFamily):
    """Double blocks, then single blocks with the text in front, all on one grid. Text and references stay whole."""

    name = "Flux in ComfyUI (Flux.1, Flux.2)"
    class_name = "Flux"

    def default_skip(self, blocks: int) -> int:
        return round(blocks * SKIPPED / OF_BLOCKS)

    def stacks(self, model: Any) -> list[Stack]:
        double = [
            Block(f"double_blocks.{index}", module, DOUBLE_PARTS, output=0, rotary=ROTARY, in_place=True)
            for index, module in enumerate(model.double_blocks)
        ]
        single = [
            Block(f"single_blocks.{index}", module, SINGLE_PARTS, rotary=ROTARY, in_place=True)
            for index, module in enumerate(model.single_blocks)
        ]
        grid = partial(patches, model.patch_size)
        return [Stack("blocks", "blocks", model, grid, (*double, *single), trailing=partial(_references, grid))]

    def shape_of(self, kwargs: Mapping[str, Any]) -> Hashable:
        return tuple(tuple(reference.shape) for reference in kwargs.get("ref_latents") or ())

    def fixed_order(self, kwargs: Mapping[str, Any]) -> str:
        clean = kwargs.get("ref_latents_method") == "index_timestep_zero"
        return TIME_PER_TOKEN if clean and kwargs.get("ref_latents") else ""


def patches(side: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """The grid of a latent, filled up to whole patches."""
    return tuple(-(-length // side) for length in kwargs["x"].shape[-2:])


def _references(grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    references = kwargs.get("ref_latents") or ()
    sizes = (grid((), {"x": reference}) for reference in references)
    return sum(rows * columns for rows, columns in sizes)


def heads_rows_at(embedding: Tensor, places: Tensor, tokens: int) -> Tensor:
    """(B, 1, S, D, 2, 2), the second axis for heads."""
    return rows_at(embedding.squeeze(1), places, tokens).unsqueeze(1)


ROTARY = Rotary("pe", heads_rows_at, per_sample=True)
# Attention is no module: the block calls it, and takes the mask and the position embeddings for it.
DOUBLE_PARTS = (
    Part(
        ("self",),
        "img_attn.qkv",
        "img_attn.proj",
        attention="",
        mask="4d",
        mask_argument="attn_mask",
        context_argument="txt",
        text="first",
    ),
    Part(("mlp",), "img_mlp"),
)
SINGLE_PARTS = (
    Part(("self", "mlp"), "linear1", "linear2", attention="", mask="4d", mask_argument="attn_mask", text="first"),
)
