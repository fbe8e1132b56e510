"""Krea 2: `Krea2Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Part, Rotary, Stack, cos_sin_at
from tokenmerge.models.builders import PackedFamily, Run
from tokenmerge.models.flux import with_values
from tokenmerge.models.position_ids import grid_of_ids, image_ids

PARTS = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff", text="first"))


class Krea2Family(PackedFamily):
    """One stack of blocks on text and image in one sequence, text first."""

    name = "Krea 2"
    class_name = "Krea2Transformer2DModel"
    positions = ("position_ids",)
    runs = (Run("transformer_blocks", PARTS, rotary=Rotary("image_rotary_emb", cos_sin_at)),)
    text = 512, "num_text_layers", "text_hidden_dim"  # the length of a prompt, of which several layers are read

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, *self.runs, trailing=self.behind)]

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        return grid_of_ids(kwargs["position_ids"], kwargs["encoder_hidden_states"].shape[1])

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        texts = inputs["encoder_hidden_states"]
        ids = torch.cat([torch.zeros(texts.shape[1], 3), image_ids(*self.example_grid(size), 3)])
        return {**inputs, "position_ids": with_values(ids, texts.device)}
