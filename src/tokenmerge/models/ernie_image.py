"""ERNIE-Image: `ErnieImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import LatentFamily, Run, first

PARTS = (
    Part(("self",), "self_attention", mask="4d", text="first"),
    Part(("mlp",), "mlp", text="first", tokens_first=True),
)
PROMPT = 256  # tokens


def _rows_at(embedding: Any, places: Tensor, tokens: int) -> Any:
    """Of a block the position embeddings and the modulation, of which every token has the same row; or the first."""
    if isinstance(embedding, Tensor):
        return rows_at(embedding, places, tokens)
    rows, modulation = embedding
    moved = rows_at(rows, places, tokens)
    return moved, [each[: moved.shape[1]] for each in modulation]


ROTARY = Rotary(("rotary_pos_emb", "temb"), _rows_at, attention_argument="image_rotary_emb", per_sample=True)


class ErnieImageFamily(LatentFamily):
    """One stack of blocks on (L, B, C), the image before its text."""

    name = "ERNIE-Image"
    class_name = "ErnieImageTransformer2DModel"
    pixels = 16
    conditions = ("text_bth",)
    runs = (Run("layers", PARTS, rotary=ROTARY, tokens_first=True),)
    embeddings = (("text_bth", PROMPT, "text_in_dim"),)

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, *self.runs, starts=first)]

    def prepare_meta(self, model: nn.Module) -> None:
        # It makes position embeddings under autocast, which the meta device has not.
        width = sum(model.config.rope_axes_dim)  # type: ignore[union-attr, arg-type]
        embedder: Any = model.pos_embed
        embedder.forward = lambda ids: torch.empty(*ids.shape[:2], 1, width, device="meta")

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        return {**inputs, "text_lens": torch.full((batch,), PROMPT, device=inputs["text_bth"].device)}
