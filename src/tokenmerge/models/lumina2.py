"""Lumina-Image 2.0: `Lumina2Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import LatentFamily, blocks_of
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

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [
            self.stack(model, name, blocks_of(model, name, PARTS, rotary=ROTARY), starts=_behind_text)
            for name in ("noise_refiner", "layers")
        ]

    def prepare_meta(self, model: nn.Module) -> None:
        # The mask keeps its values, which the model reads, and so is on another device than what it masks.
        for block in model.context_refiner:  # type: ignore[union-attr]
            block.register_forward_pre_hook(lambda _, args: (args[0], args[1].to("meta"), *args[2:]))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        # 256 is the length of a prompt. The mask must have values: they tell where images begin.
        device = next(model.parameters()).device
        mask = torch.ones(batch, 256, dtype=torch.int64, device="cpu" if device.type == "meta" else device)
        return {
            "hidden_states": self.latents(model, size, batch),
            "timestep": self.times(model, batch, 0.5),
            "encoder_hidden_states": self.noise(model, batch, 256, config.cap_feat_dim),
            "encoder_attention_mask": mask,
        }


def _behind_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    return lengths_of(kwargs["encoder_attention_mask"])
