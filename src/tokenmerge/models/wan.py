"""Wan 2.1 and 2.2, and models made from it: VACE, Animate, SkyReels V2, ChronoEdit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import (
    TIME_PER_TOKEN,
    Call,
    Family,
    Part,
    Rotary,
    Stack,
    blocks_of,
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
    video = True
    interleaved = False  # whether something is added to the tokens between blocks

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        blocks = blocks_of(model, "blocks", PARTS, rotary=ROTARY)
        return [Stack("blocks", "blocks", model, partial(patch_grid, tuple(config.patch_size)), blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        timestep = kwargs["timestep"]
        hidden = kwargs["hidden_states"]
        fixed_order = TIME_PER_TOKEN if timestep.dim() == 2 else ""
        return Call(timestep, signature_of(hidden), (), fixed_order, interleaved=self.interleaved)

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


class SkyReelsFamily(WanFamily):
    """Diffusion forcing, with a timestep for each frame, keeps tokens in grid order."""

    name = "SkyReels V2 (video)"
    class_name = "SkyReelsV2Transformer3DModel"


class ChronoEditFamily(WanFamily):
    name = "ChronoEdit"
    class_name = "ChronoEditTransformer3DModel"


class WanVACEFamily(WanFamily):
    """Blocks of the control branch, one in five, keep every token; what they return is added between blocks."""

    name = "Wan VACE (video)"
    class_name = "WanVACETransformer3DModel"
    interleaved = True

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        inputs = super().example_inputs(model, size, batch)
        control = torch.randn(batch, config.vace_in_channels, 21, size[0] // 8, size[1] // 8, **new_like(model))
        return {**inputs, "control_hidden_states": control}


class WanAnimateFamily(WanFamily):
    """A face adapter reads the frames between blocks, so each block returns every token."""

    name = "Wan Animate (video)"
    class_name = "WanAnimateTransformer3DModel"
    interleaved = True

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        inputs = super().example_inputs(model, size, batch)
        rows, columns, face = size[0] // 8, size[1] // 8, config.motion_encoder_size
        # The first of 21 latent frames is the reference's: the rest are 77 of a video, with a pose and a face each.
        more = {
            "pose_hidden_states": torch.randn(batch, config.latent_channels, 20, rows, columns, **new),
            "face_pixel_values": torch.randn(batch, 3, 77, face, face, **new),
        }
        return {**inputs, **more}
