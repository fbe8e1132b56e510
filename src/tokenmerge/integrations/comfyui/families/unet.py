"""Stable Diffusion 1.x, 2.x and SDXL in ComfyUI: `UNetModel`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from tokenmerge.errors import UnsupportedModelError
from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.models.base import Block, Part, Stack, is_a


class ComfyUNetFamily(ComfyFamily):
    """Every `SpatialTransformer` is a stack; its input still has height and width."""

    name = "Stable Diffusion UNet in ComfyUI (1.x, 2.x, SDXL)"
    class_name = "UNetModel"
    timestep = "timesteps"

    def stacks(self, model: nn.Module) -> list[Stack]:
        found = list(_transformers(model))
        finest = min((depth for *_, depth in found), default=0)
        return [
            Stack(
                name=name,
                level=f"{name.split('.')[0]} / {2**depth}",
                owner=module,
                grid=_grid,
                blocks=_blocks(module, f"{name}.transformer_blocks"),
                downsample=2 ** (depth - finest),
                norm="norm",
            )
            for name, module, depth in found
        ]

    def interleaved(self, options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> bool:
        """Never: a ControlNet adds to images between transformers, not to tokens inside them."""
        return False


def _transformers(model: Any) -> Iterator[tuple[str, nn.Module, int]]:
    """Each transformer, in the order they run, with its name and how often the grid has been halved before it."""
    depth = 0
    for part in ("input_blocks", "middle_block", "output_blocks"):
        blocks = {part: model.middle_block} if part == "middle_block" else dict(_numbered(part, getattr(model, part)))
        for name, block in blocks.items():
            for index, layer in enumerate(block or ()):
                if is_a(layer, "SpatialVideoTransformer"):
                    raise UnsupportedModelError(
                        "this UNet makes videos (SVD), whose transformers mix frames between their blocks: tokenmerge "
                        "merges in UNets of images only. Take Token Merge out."
                    )
                if is_a(layer, "SpatialTransformer"):
                    yield f"{name}.{index}", layer, depth
                depth += _holds(layer, "Downsample") - _holds(layer, "Upsample")


def _numbered(name: str, blocks: Any) -> Iterator[tuple[str, Any]]:
    return ((f"{name}.{number}", block) for number, block in enumerate(blocks))


def _holds(layer: nn.Module, class_name: str) -> bool:
    """Whether a layer changes the resolution; residual blocks that do hold two such layers, and count once."""
    return any(is_a(module, class_name) for module in layer.modules())


def _blocks(transformer: Any, prefix: str) -> tuple[Block, ...]:
    blocks = []
    for index, module in enumerate(transformer.transformer_blocks):
        parts = [_self_attention(module)]
        if module.attn2 is not None:
            parts.append(Part(("cross",), "attn2"))
        parts.append(Part(("mlp",), "ff"))
        blocks.append(Block(f"{prefix}.{index}", module, tuple(parts)))
    return tuple(blocks)


def _self_attention(module: Any) -> Part:
    if module.disable_self_attn:  # its keys are the text's
        return Part(("self",), "attn1")
    return Part(("self",), "attn1", own_keys=True, mask="4d", mask_argument="mask", context_argument="context")


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(kwargs["x"].shape[-2:])
