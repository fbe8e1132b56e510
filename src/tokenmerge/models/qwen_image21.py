"""Qwen-Image 2.1: `QwenImage21Transformer2DModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tokenmerge.errors import ConfigError
from tokenmerge.models.base import Family, Part, Rotary, Stack, new_like, rows_at
from tokenmerge.models.builders import blocks_of
from tokenmerge.models.flux import with_values

PARTS = (
    # What stands before the image reads nothing of it, and so may come from a cache after the first step.
    Part(("self",), "attn", mask="inside", text="first", text_mask=True, cached_keys=True),
    Part(("mlp",), "img_mlp", text="first"),
)
# The arguments that have a row, or a column, for each token.
ROWS = ("rotary_emb", "key_valid", "attention_mask")
TOKENS_TO_A_SLOT = 4


class QwenImage21Family(Family):
    """One stack of blocks on text, images to edit and the image being made, which stands last, in one sequence."""

    name = "Qwen-Image 2.1"
    class_name = "QwenImage21Transformer2DModel"
    positions = ("img_mask",)

    def stacks(self, model: nn.Module) -> list[Stack]:
        rotary = Rotary((*ROWS, "target_token_mask"), _rows_at, attention_argument=ROWS)
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=rotary)
        if any("Flex" in type(block.module.attn.processor).__name__ for block in blocks):  # type: ignore[union-attr]
            raise ConfigError(
                "QwenImage21FlexAttnProcessor masks tokens by their place, which merging cannot follow: set the "
                "default processor, QwenImage21AttnProcessor, before merging."
            )
        return [Stack("transformer_blocks", "transformer_blocks", model, _grid, blocks)]

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), _grid((), kwargs)

    def prepare_meta(self, model: nn.Module) -> None:
        # The mask of slots keeps its values, which the model reads, and so do masks that it makes of that one.
        for module in (*model.transformer_blocks, model.norm_out):  # type: ignore[misc]
            module.register_forward_pre_hook(_on_meta, with_kwargs=True)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 16 pixels a side make a token, and four tokens a slot among those of the text, of which there are 256.
        rows, columns, text = size[0] // 16, size[1] // 16, 256
        slots = torch.arange(text + rows * columns // TOKENS_TO_A_SLOT) >= text
        return {
            "hidden_states": torch.randn(batch, rows * columns, config.in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, text, config.context_in_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
            "img_shapes": [[(1, rows, columns)]] * batch,
            "img_mask": with_values(slots.expand(batch, -1), new["device"]),
        }


def _on_meta(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    frames, rows, columns = kwargs["img_shapes"][0][-1]
    return (rows, columns) if frames == 1 else (frames, rows, columns)


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
