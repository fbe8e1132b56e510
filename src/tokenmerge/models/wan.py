"""Wan 2.1 and 2.2, video: `WanTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import (
    TIME_PER_TOKEN,
    Block,
    Call,
    Family,
    Part,
    Rotary,
    Stack,
    cos_sin_at,
    new_like,
    patch_grid,
    signature_of,
)

PARTS = (Part(("self",), "attn1", mask="4d"), Part(("cross",), "attn2"), Part(("mlp",), "ffn"))
ROTARY = Rotary("rotary_emb", cos_sin_at, per_sample=True)


class WanFamily(Family):
    """One stack of blocks over frames, rows and columns. Wan 2.2 has two such models; both are merged."""

    name = "Wan 2.1, 2.2 (video)"
    class_name = "WanTransformer3DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        blocks = tuple(
            Block(f"blocks.{index}", module, PARTS, rotary=ROTARY)
            for index, module in enumerate(model.blocks)  # type: ignore[arg-type]
        )
        return [Stack("blocks", "blocks", model, partial(patch_grid, tuple(config.patch_size)), blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        timestep = kwargs["timestep"]
        hidden = kwargs["hidden_states"]
        fixed_order = TIME_PER_TOKEN if timestep.dim() == 2 else ""
        return Call(timestep, signature_of(hidden), fixed_order=fixed_order)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 21 latent frames are the usual 81 of a video; 512 is the length of a prompt, fixed in the model.
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, config.in_channels, 21, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, 512, config.text_dim, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }
        if config.image_dim is not None:
            inputs["encoder_hidden_states_image"] = torch.randn(batch, 257, config.image_dim, **new)
        return inputs
