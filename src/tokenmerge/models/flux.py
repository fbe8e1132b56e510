"""Flux.1 dev, schnell, Fill and Kontext: `FluxTransformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.models.arguments import argument_names
from tokenmerge.models.base import Part, Rotary, Stack, cos_sin_at
from tokenmerge.models.builders import PackedFamily, Run
from tokenmerge.models.position_ids import grid_of_ids, image_ids, reference_grids

# The paper leaves the first 10 of Flux's 57 blocks alone; a model with fewer blocks has as large a share of them.
SKIPPED, OF_BLOCKS = 10, 57

ROTARY = Rotary("image_rotary_emb", cos_sin_at)


DOUBLE_PARTS = (
    # With an IP-Adapter the attention returns a third item, which is for the image's tokens too.
    Part(("self",), "attn", mask="4d", text="first", outputs=(0, 2)),
    Part(("mlp",), "ff"),
)
SINGLE_PARTS = (
    # Attention and MLP run side by side on one normalised sequence and leave through one projection.
    Part(("self", "mlp"), "norm", "proj_out", enters_at="output", attention="attn", mask="4d", text="first"),
    Part(("self",), "attn", mask="4d", text="first"),
    Part(("mlp",), "proj_mlp", "act_mlp", text="first"),
)


class FluxFamily(PackedFamily):
    """Double blocks, then single blocks, on one grid and so in one stack. Text is never merged.

    Models made after it differ in the class attributes, and in what else they are called with.
    """

    name = "Flux.1 (dev, schnell, Fill, Kontext)"
    class_name = "FluxTransformer2DModel"
    positions = ("img_ids", "txt_ids")
    between_blocks = ("controlnet_block_samples", "controlnet_single_block_samples")
    double_parts: tuple[Part, ...] = DOUBLE_PARTS
    single_parts: tuple[Part, ...] = SINGLE_PARTS
    single_output: int | None = 1  # None: single blocks take and return text and image in one sequence
    axes = 3  # of position ids
    text = 512, "joint_attention_dim"  # the length of a prompt for T5
    guidance = 3.5

    def default_skip(self, blocks: int) -> int:
        return round(blocks * SKIPPED / OF_BLOCKS)

    def stacks(self, model: nn.Module) -> list[Stack]:
        double = Run("transformer_blocks", self.double_parts, 1, ROTARY)
        single = Run("single_transformer_blocks", self.single_parts, self.single_output, ROTARY)
        return [self.stack(model, double, single, trailing=self.behind, references=_reference_grids)]

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        return grid_of_ids(kwargs["img_ids"])

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        inputs = super().example_inputs(model, size, batch)
        texts = inputs["encoder_hidden_states"]
        inputs["img_ids"] = with_values(image_ids(*self.example_grid(size), self.axes), texts.device)
        inputs["txt_ids"] = with_values(torch.zeros(texts.shape[1], self.axes), texts.device)
        if "pooled_projections" in argument_names(model) and config.pooled_projection_dim:
            inputs["pooled_projections"] = self.noise(model, batch, config.pooled_projection_dim)
        return inputs


def with_values(ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Ids on the model's device, unless that is "meta", where they would lose their values."""
    return ids if device.type == "meta" else ids.to(device)


def _reference_grids(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    return reference_grids(kwargs["img_ids"])
