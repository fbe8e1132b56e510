"""PRX: `PRXTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import LatentFamily, blocks_of

PARTS = (
    # Only the image asks; keys are of text and image.
    Part(("self",), "attention", mask="inside", text="first", text_mask=True),
    Part(("mlp",), "post_attention_layernorm", "down_proj", enters_at="output"),
)


class PRXFamily(LatentFamily):
    """One stack of blocks on the image, whose attention reads the text, the same in all of them, too."""

    name = "PRX"
    class_name = "PRXTransformer2DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        rotary = Rotary("image_rotary_emb", _rows_at, per_sample=True)
        return [self.stack(model, "blocks", blocks_of(model, "blocks", PARTS, rotary=rotary))]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        latents = self.latents(model, size, batch)
        # 256 is the length of a prompt.
        return {
            "hidden_states": latents,
            "timestep": self.times(model, batch, 0.5),
            "encoder_hidden_states": self.noise(model, batch, 256, config.context_in_dim),
            "attention_mask": torch.ones(batch, 256, dtype=torch.bool, device=latents.device),
        }


def _rows_at(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    """(B, 1, S, ...): heads, which share them, stand before the rows."""
    return rows_at(rows.squeeze(1), places, tokens).unsqueeze(1)
