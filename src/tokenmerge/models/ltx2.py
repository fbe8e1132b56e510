"""LTX-2, video with sound: `LTX2VideoTransformer3DModel`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tokenmerge.models.base import Rotary, rows_at
from tokenmerge.models.builders import Run
from tokenmerge.models.ltx import PARTS, LTXFamily

SOUND = 126  # tokens of five seconds


def _pairs_at(embeddings: tuple[Any, ...], places: Tensor, tokens: int) -> tuple[Any, ...]:
    """Pairs of cosines and sines, one for each argument, of (B, tokens, D) or (B, heads, tokens, D)."""
    return tuple(tuple(_rows_at(rows, places, tokens) for rows in pair) for pair in embeddings)


def _rows_at(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    if rows.dim() == 3:
        return rows_at(rows, places, tokens)
    return rows_at(rows.transpose(1, 2), places, tokens).transpose(1, 2)


ROTARY = Rotary(
    ("video_rotary_emb", "ca_video_rotary_emb"), _pairs_at, attention_argument=("query_rotary_emb",), per_sample=True
)


class LTX2Family(LTXFamily):
    """One stack of blocks in which video and sound read each other. Tokens of sound are never merged."""

    name = "LTX-2 (video with sound)"
    class_name = "LTX2VideoTransformer3DModel"
    conditions = ("encoder_hidden_states", "audio_encoder_hidden_states")
    runs = (Run("transformer_blocks", PARTS, output=0, rotary=ROTARY),)
    frames = 16  # of 121
    text = 1024, "caption_channels"
    text_mask = ""
    embeddings = (
        ("audio_hidden_states", SOUND, "audio_in_channels"),
        ("audio_encoder_hidden_states", 1024, "caption_channels"),
    )

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        return {**inputs, "sigma": self.times(model, batch, 0.5), "audio_num_frames": SOUND}
