"""HunyuanVideo: `HunyuanVideoTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import (
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

DOUBLE_PARTS = (Part(("self",), "attn", mask="4d", text="last"), Part(("mlp",), "ff"))
SINGLE_PARTS = (
    Part(("self", "mlp"), "norm", "proj_out", enters_at="output", attention="attn", mask="4d", text="last"),
    Part(("self",), "attn", mask="4d", text="last"),
    Part(("mlp",), "proj_mlp", "act_mlp", text="last"),
)
FIRST_FRAME = "this model treats the tokens of the first frame apart, by their place"


class HunyuanVideoFamily(Family):
    """Double blocks, then single blocks, over frames, rows and columns; text stands behind the image."""

    name = "HunyuanVideo"
    class_name = "HunyuanVideoTransformer3DModel"
    video = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        double = [
            Block(
                f"transformer_blocks.{index}",
                module,
                DOUBLE_PARTS,
                output=0,
                rotary=Rotary("freqs_cis", cos_sin_at, attention_argument="image_rotary_emb"),
            )
            for index, module in enumerate(model.transformer_blocks)  # type: ignore[arg-type]
        ]
        single = [
            Block(
                f"single_transformer_blocks.{index}",
                module,
                SINGLE_PARTS,
                output=0,
                rotary=Rotary("image_rotary_emb", cos_sin_at),
            )
            for index, module in enumerate(model.single_transformer_blocks)  # type: ignore[arg-type]
        ]
        patch = config.patch_size_t, config.patch_size, config.patch_size
        fixed_order = FIRST_FRAME if config.image_condition_type == "token_replace" else ""
        blocks = (*double, *single)
        return [Stack("blocks", "blocks", model, partial(patch_grid, patch), blocks, fixed_order=fixed_order)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        hidden = kwargs["hidden_states"]
        return Call(kwargs.get("timestep"), signature_of(hidden))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 33 latent frames are the usual 129 of a video; 256 is the length of a prompt.
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, config.in_channels, 33, size[0] // 8, size[1] // 8, **new),
            "encoder_hidden_states": torch.randn(batch, 256, config.text_embed_dim, **new),
            "encoder_attention_mask": torch.ones(batch, 256, device=new["device"], dtype=torch.bool),
            "pooled_projections": torch.randn(batch, config.pooled_projection_dim, **new),
            "timestep": torch.full((batch,), 500.0, **new),
        }
        if config.guidance_embeds:
            inputs["guidance"] = torch.full((batch,), 6000.0, **new)
        return inputs
