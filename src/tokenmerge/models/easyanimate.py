"""EasyAnimate 5.1: `EasyAnimateTransformer3DModel`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Block, Family, Part, Rotary, Stack, cos_sin_at, new_like, patch_grid

ATTENTION = Part(("self",), "attn1", mask="4d", text="first")
ROTARY = Rotary("image_rotary_emb", cos_sin_at)


class EasyAnimateFamily(Family):
    """One stack of joint blocks over frames, rows and columns. The last blocks may have one MLP for text and video."""

    name = "EasyAnimate"
    class_name = "EasyAnimateTransformer3DModel"
    video = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        modules: Any = model.transformer_blocks
        blocks = tuple(
            Block(f"transformer_blocks.{index}", module, _parts(module), output=0, rotary=ROTARY)
            for index, module in enumerate(modules)
        )
        # Built without arguments, as for the support table, it has no patch size.
        grid = partial(patch_grid, (1, config.patch_size, config.patch_size))
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 49 frames of a video are 13 latent ones, 256 is the length of a prompt.
        return {
            "hidden_states": torch.randn(batch, config.in_channels, 13, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, 256, config.text_embed_dim, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }


def _parts(block: Any) -> tuple[Part, ...]:
    # An MLP that is called a second time, for the text, cannot tell which of the two it is given.
    return (ATTENTION,) if block.txt_ff is None else (ATTENTION, Part(("mlp",), "ff"))
