"""One transformer block of SDXL as a model, so that images of any size fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.bench.subject import placed
from tokenmerge.models.base import Family, Stack, blocks_of, new_like
from tokenmerge.models.unet import basic_parts

TEXT_WIDTH = 2048
TEXT_LENGTH = 77
HEAD_WIDTH = 64
# How many pixels a token stands for along a side, at SDXL's two levels that have blocks.
PIXELS_A_TOKEN = {640: 16, 1280: 32}


def build_one_block(channels: int, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A block as wide as SDXL's at one of its levels, with random weights, called with tokens still on their grid."""
    from diffusers import ModelMixin
    from diffusers.models.attention import BasicTransformerBlock

    # A diffusers model by inheritance only because the tomesd package merges in nothing else.
    class OneBlock(ModelMixin):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            block = BasicTransformerBlock(channels, channels // HEAD_WIDTH, HEAD_WIDTH, cross_attention_dim=TEXT_WIDTH)
            self.transformer_blocks = nn.ModuleList([block])

        def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
            tokens = hidden_states.flatten(2).transpose(1, 2).contiguous()  # (B, C, H, W) -> (B, N, C)
            for block in self.transformer_blocks:
                tokens = block(tokens, encoder_hidden_states=encoder_hidden_states)
            return tokens

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = OneBlock()
    return placed(model, device, dtype)


class OneBlockFamily(Family):
    """How merging gets into it. Known to the benchmark alone."""

    name = "one block"

    def recognises(self, model: nn.Module) -> bool:
        return type(model).__name__ == "OneBlock"

    def stacks(self, model: nn.Module) -> list[Stack]:
        def grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
            return tuple(kwargs["hidden_states"].shape[-2:])

        blocks = blocks_of(model, "transformer_blocks", basic_parts)
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        like = next(model.parameters())
        channels = like.shape[0]  # the block's first weight is a norm's
        pixels = PIXELS_A_TOKEN.get(channels, 8)
        new = new_like(model)
        return {
            "hidden_states": torch.randn(batch, channels, size[0] // pixels, size[1] // pixels, **new),
            "timestep": torch.full((), 500.0, device=like.device),
            "encoder_hidden_states": torch.randn(batch, TEXT_LENGTH, TEXT_WIDTH, **new),
        }
