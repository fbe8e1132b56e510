"""AuraFlow: `AuraFlowTransformer2DModel`."""

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

JOINT_PARTS = (Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "ff"))
# Single blocks get text and image in one sequence, joined once before the first of them.
SINGLE_PARTS = (Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "ff", text="first"))


class AuraFlowFamily(Family):
    """Joint blocks, then single blocks, in one stack; positions are added before the first."""

    name = "AuraFlow"
    class_name = "AuraFlowTransformer2DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        joint = [
            Block(f"joint_transformer_blocks.{index}", module, JOINT_PARTS, output=1)
            for index, module in enumerate(model.joint_transformer_blocks)  # type: ignore[arg-type]
        ]
        single = [
            Block(f"single_transformer_blocks.{index}", module, SINGLE_PARTS)
            for index, module in enumerate(model.single_transformer_blocks)  # type: ignore[arg-type]
        ]
        return [Stack("blocks", "blocks", model, partial(patch_grid, config.patch_size), (*joint, *single))]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        hidden = kwargs["hidden_states"]
        return Call(kwargs.get("timestep"), signature_of(hidden))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        return {
            "hidden_states": torch.randn(batch, config.in_channels, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, 256, config.joint_attention_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
        }
