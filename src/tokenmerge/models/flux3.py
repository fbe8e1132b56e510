"""Flux.3: `Flux3Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, Stack, cos_sin_at, rows_at
from tokenmerge.models.builders import PackedFamily, Run
from tokenmerge.models.flux import with_values
from tokenmerge.models.position_ids import grid_of_ids, image_ids

# Attention and MLP run side by side on one normalised sequence.
PARTS = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff", text="first"))


def _rows_at(embedding: tuple[Any, Any], places: Tensor, tokens: int) -> tuple[Any, Any]:
    """Of a block the position embeddings and the modulation, which has a row for each token; of attention the first."""
    first, second = embedding
    if isinstance(first, Tensor):
        return cos_sin_at((first, second), places, tokens)
    return cos_sin_at(first, places, tokens), rows_at(second, places, tokens)


ROTARY = Rotary(("image_rotary_emb", "temb_mod"), _rows_at, attention_argument="image_rotary_emb")
ALONE = Run("mode_blocks.image", PARTS, rotary=ROTARY)
JOINT = Run("single_transformer_blocks", PARTS, output=1, rotary=ROTARY)


class Flux3Family(PackedFamily):
    """Blocks on the image alone, then blocks that read text too; references stand behind the image, and stay."""

    name = "Flux.3"
    class_name = "Flux3Transformer2DModel"
    positions = ("img_ids", "txt_ids", "image_cond_ids")
    text = 512, "joint_attention_dim"  # the length of a prompt

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, ALONE), self.stack(model, JOINT, trailing=self.behind)]

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        return grid_of_ids(kwargs["img_ids"])

    def behind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        references = kwargs.get("image_cond_hidden_states")
        return 0 if references is None else int(references.shape[1])

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), self.behind((), kwargs)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        texts = inputs["encoder_hidden_states"]
        inputs["img_ids"] = with_values(image_ids(*self.example_grid(size), 4), texts.device)
        inputs["txt_ids"] = with_values(torch.zeros(texts.shape[1], 4), texts.device)
        if model.config.flow_map:  # type: ignore[union-attr]
            inputs["target_timestep"] = self.times(model, batch, 0.4)
        return inputs
