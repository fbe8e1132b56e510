"""Stable Diffusion 3 and 3.5 in ComfyUI: `OpenAISignatureMMDITWrapper`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.integrations.comfyui.families.flux import patches
from tokenmerge.models.base import Block, Part, Stack

# Attention is no module: the block calls it on text and image, and some blocks call it again on the image alone.
JOINT = Part(
    ("self",),
    "x_block.attn.qkv",
    "x_block.attn.proj",
    attention="",
    mask="inside",
    context_argument="context",
    text="first",
)
ALONE = Part(
    ("self",), "x_block.attn2.qkv", "x_block.attn2.proj", attention="", mask="inside", context_argument="", text="first"
)
MLP = Part(("mlp",), "x_block.mlp")


class ComfySD3Family(ComfyFamily):
    """Joint blocks of text and image. Positions are added before them."""

    name = "Stable Diffusion 3 and 3.5 in ComfyUI"
    class_name = "OpenAISignatureMMDITWrapper"
    timestep = "timesteps"

    def stacks(self, model: Any) -> list[Stack]:
        blocks = tuple(
            Block(
                f"joint_blocks.{index}",
                module,
                (JOINT, ALONE, MLP) if module.x_block.x_block_self_attn else (JOINT, MLP),
                output=1,
                argument="x",
                arguments=("context", "x"),
            )
            for index, module in enumerate(model.joint_blocks)
        )
        return [Stack("blocks", "blocks", model, partial(patches, model.patch_size), blocks)]
