"""Stable Diffusion 3 and 3.5: `SD3Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import (
    Block,
    Call,
    Family,
    Part,
    Stack,
    new_like,
    patch_grid,
    signature_of,
)


class SD3Family(Family):
    """One stack of joint blocks, some with a second attention over the image alone; positions are added before."""

    name = "Stable Diffusion 3 and 3.5"
    class_name = "SD3Transformer2DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        modules: Any = model.transformer_blocks
        blocks = tuple(
            Block(f"transformer_blocks.{index}", module, _parts(module), output=1)
            for index, module in enumerate(modules)
        )
        return [
            Stack("transformer_blocks", "transformer_blocks", model, partial(patch_grid, config.patch_size), blocks)
        ]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        # A list of layers to leave out comes with skip-layer guidance.
        apart = (
            kwargs.get("block_controlnet_hidden_states"),
            kwargs.get("skip_layers"),
        )
        return Call(
            timestep=kwargs.get("timestep"),
            signature=signature_of(kwargs["hidden_states"]),
            interleaved=any(given is not None for given in apart),
        )

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 77 tokens of text from CLIP and 256 from T5.
        return {
            "hidden_states": torch.randn(batch, config.in_channels, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, 77 + 256, config.joint_attention_dim, **new),
            "pooled_projections": torch.randn(batch, config.pooled_projection_dim, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }


def _parts(block: Any) -> tuple[Part, ...]:
    joint, mlp = Part(("self",), "attn", mask="inside", text="last"), Part(("mlp",), "ff")
    return (joint, mlp) if block.attn2 is None else (joint, Part(("self",), "attn2", mask="inside"), mlp)
