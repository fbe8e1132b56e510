"""LTX-2, video with sound: `LTX2VideoTransformer3DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Rotary, Stack, blocks_of, new_like, rows_at
from tokenmerge.models.ltx import PARTS, LTXFamily, grid_of_video


class LTX2Family(LTXFamily):
    """One stack of blocks in which video and sound read each other. Tokens of sound are never merged."""

    name = "LTX-2 (video with sound)"
    class_name = "LTX2VideoTransformer3DModel"
    conditions = ("encoder_hidden_states", "audio_encoder_hidden_states")

    def stacks(self, model: nn.Module) -> list[Stack]:
        rotary = Rotary(
            ("video_rotary_emb", "ca_video_rotary_emb"),
            _pairs_at,
            attention_argument=("query_rotary_emb",),
            per_sample=True,
        )
        blocks = blocks_of(model, "transformer_blocks", PARTS, output=0, rotary=rotary)
        return [Stack("transformer_blocks", "transformer_blocks", model, grid_of_video, blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 121 frames of a video are 16 latent ones, and their five seconds of sound 126; 1024 is the length of a prompt.
        frames, rows, columns = 16, size[0] // 32, size[1] // 32
        return {
            "hidden_states": torch.randn(batch, frames * rows * columns, config.in_channels, **new),
            "audio_hidden_states": torch.randn(batch, 126, config.audio_in_channels, **new),
            "encoder_hidden_states": torch.randn(batch, 1024, config.caption_channels, **new),
            "audio_encoder_hidden_states": torch.randn(batch, 1024, config.caption_channels, **new),
            "timestep": torch.full((batch,), 500.0, **new),
            "sigma": torch.full((batch,), 0.5, **new),
            "num_frames": frames,
            "height": rows,
            "width": columns,
            "audio_num_frames": 126,
        }


def _pairs_at(embeddings: tuple[Any, ...], places: Tensor, tokens: int) -> tuple[Any, ...]:
    """Pairs of cosines and sines, one for each argument, of (B, tokens, D) or (B, heads, tokens, D)."""
    return tuple(tuple(_rows_at(rows, places, tokens) for rows in pair) for pair in embeddings)


def _rows_at(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    if rows.dim() == 3:
        return rows_at(rows, places, tokens)
    return rows_at(rows.transpose(1, 2), places, tokens).transpose(1, 2)
