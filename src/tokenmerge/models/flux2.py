"""Flux.2: `Flux2Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Block, Call, Part, Stack, new_like, signature_of, timestep_value
from tokenmerge.models.flux import ROTARY, FluxFamily, with_values
from tokenmerge.models.position_ids import grid_of_ids, image_ids

DOUBLE_PARTS = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff"))
# The single blocks' attention has the MLP inside it, and gets text and image in one sequence.
SINGLE_PARTS = (Part(("self", "mlp"), "attn", mask="4d", text="first"),)


class Flux2Family(FluxFamily):
    """As Flux.1, but text and image are joined once, between double and single blocks."""

    name = "Flux.2"
    class_name = "Flux2Transformer2DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        double = [
            Block(f"transformer_blocks.{index}", module, DOUBLE_PARTS, output=1, rotary=ROTARY)
            for index, module in enumerate(model.transformer_blocks)  # type: ignore[arg-type]
        ]
        single = [
            Block(f"single_transformer_blocks.{index}", module, SINGLE_PARTS, rotary=ROTARY)
            for index, module in enumerate(model.single_transformer_blocks)  # type: ignore[arg-type]
        ]
        return [Stack("blocks", "blocks", model, _grid, (*double, *single), trailing=_references)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        if kwargs.get("kv_cache_mode") is not None:
            raise MergeRuntimeError(
                "Flux.2 was called with kv_cache_mode, which keeps keys of references between steps and puts "
                "references in front of the image, where merging does not look: call it without kv_cache_mode."
            )
        hidden = kwargs["hidden_states"]
        timestep = timestep_value(kwargs.get("timestep"))
        return Call(timestep, (signature_of(hidden), _grid(args, kwargs)))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 16 pixels a side make a token; 512 is the length of a prompt.
        rows, columns = size[0] // 16, size[1] // 16
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, rows * columns, config.in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, 512, config.joint_attention_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
            "img_ids": with_values(image_ids(rows, columns, 4), new["device"]),
            "txt_ids": with_values(torch.zeros(512, 4), new["device"]),
        }
        if config.guidance_embeds:
            inputs["guidance"] = torch.full((batch,), 4.0, **new)
        return inputs


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    grid: tuple[int, ...] = grid_of_ids(kwargs["img_ids"])
    return grid


def _references(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    rows, columns = _grid(args, kwargs)
    tokens: int = kwargs["hidden_states"].shape[1]
    return tokens - rows * columns
