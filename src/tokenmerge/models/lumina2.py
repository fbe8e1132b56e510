"""Lumina-Image 2.0: `Lumina2Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.position_ids import lengths_of

# Attention is given what the norm returns twice, for queries and for keys.
PARTS = (
    Part(("self",), "norm1", "attn", enters_at="output", attention="attn", mask="inside", text="first"),
    Part(("mlp",), "feed_forward", text="first"),
)
ROTARY = Rotary("image_rotary_emb", rows_at, per_sample=True)


class Lumina2Family(LatentFamily):
    """The image refined alone, then behind its text; each sample's image begins where its own text ends."""

    name = "Lumina-Image 2.0"
    class_name = "Lumina2Transformer2DModel"
    timestep_rises = True
    positions = ("encoder_attention_mask",)
    runs = tuple(Run(name, PARTS, rotary=ROTARY) for name in ("noise_refiner", "layers"))
    time = 0.5
    text = 256, "cap_feat_dim"

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, run, starts=_behind_text) for run in self.runs]

    def prepare_meta(self, model: nn.Module) -> None:
        # The mask keeps its values, which the model reads, and so is on another device than what it masks.
        for block in model.context_refiner:  # type: ignore[union-attr]
            block.register_forward_pre_hook(lambda _, args: (args[0], args[1].to("meta"), *args[2:]))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        texts = inputs["encoder_hidden_states"]
        # The mask must have values: they tell where images begin.
        device = "cpu" if texts.is_meta else texts.device
        return {**inputs, "encoder_attention_mask": torch.ones(texts.shape[:2], dtype=torch.int64, device=device)}


def _behind_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    return lengths_of(kwargs["encoder_attention_mask"])
