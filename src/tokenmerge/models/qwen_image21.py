"""Qwen-Image 2.1: `QwenImage21Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tokenmerge.errors import ConfigError
from tokenmerge.models.base import Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import PackedFamily, Run
from tokenmerge.models.flux import with_values

PARTS = (
    # What stands before the image reads nothing of it, and so may come from a cache after the first step.
    Part(("self",), "attn", mask="inside", text="first", text_mask=True, cached_keys=True),
    Part(("mlp",), "img_mlp", text="first"),
)
# The arguments that have a row, or a column, for each token.
ROWS = ("rotary_emb", "key_valid", "attention_mask")
TOKENS_TO_A_SLOT = 4


class QwenImage21Family(PackedFamily):
    """One stack of blocks on text, images to edit and the image being made, which stands last, in one sequence."""

    name = "Qwen-Image 2.1"
    class_name = "QwenImage21Transformer2DModel"
    positions = ("img_mask",)
    text = 256, "context_in_dim"

    def stacks(self, model: nn.Module) -> list[Stack]:
        rotary = Rotary((*ROWS, "target_token_mask"), _rows_at, attention_argument=ROWS)
        stack = self.stack(model, Run("transformer_blocks", PARTS, rotary=rotary))
        if any("Flex" in type(block.module.attn.processor).__name__ for block in stack.blocks):  # type: ignore[union-attr]
            raise ConfigError(
                "QwenImage21FlexAttnProcessor masks tokens by their place, which merging cannot follow: set the "
                "default processor, QwenImage21AttnProcessor, before merging."
            )
        return [stack]

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        frames, rows, columns = kwargs["img_shapes"][0][-1]
        return (rows, columns) if frames == 1 else (frames, rows, columns)

    def prepare_meta(self, model: nn.Module) -> None:
        # The mask of slots keeps its values, which the model reads, and so do masks that it makes of that one.
        for module in (*model.transformer_blocks, model.norm_out):  # type: ignore[misc]
            module.register_forward_pre_hook(_on_meta, with_kwargs=True)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        rows, columns = self.example_grid(size)
        texts = inputs["encoder_hidden_states"]
        # Slots for the image stand behind the text.
        slots = torch.arange(texts.shape[1] + rows * columns // TOKENS_TO_A_SLOT) >= texts.shape[1]
        return {
            **inputs,
            "img_shapes": [[(1, rows, columns)]] * batch,
            "img_mask": with_values(slots.expand(batch, -1), texts.device),
        }


def _on_meta(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))


def _rows_at(embedding: tuple[Any, ...], places: Tensor, tokens: int) -> tuple[Any, ...]:
    """Position embeddings (S, D), two masks over keys, (B, S) and (B, 1, 1, S), and of a block a mask (S,)."""
    rotary, *masks = embedding
    # Masks treat all tokens of the image alike.
    return rows_at(rotary, places, tokens), *(_shortened(mask, tokens, places.shape[-1]) for mask in masks)


def _shortened(mask: Tensor | None, tokens: int, kept: int) -> Tensor | None:
    if mask is None:
        return None
    before = mask[..., : mask.shape[-1] - tokens]
    return torch.cat([before, mask[..., -1:].expand(*mask.shape[:-1], kept)], dim=-1)
