"""UNets that make videos: AnimateDiff, Stable Video Diffusion, text-to-video and I2VGen-XL.

Their spatial transformers see frames as samples of a batch. Those over frames, between them, keep every token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Stack, new_like
from tokenmerge.models.unet import UNetFamily

FRAMES = 16


class AnimateDiffFamily(UNetFamily):
    """Stable Diffusion's UNet with a motion module behind each transformer."""

    name = "AnimateDiff"
    class_name = "UNetMotionModel"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        # Its pipelines repeat the text for each frame.
        text = inputs["encoder_hidden_states"].repeat_interleave(FRAMES, dim=0)
        return {**inputs, "sample": _of_frames(inputs["sample"]), "encoder_hidden_states": text}


class TextToVideoFamily(UNetFamily):
    """ModelScope's text-to-video UNet, and Zeroscope."""

    name = "Text-to-video UNet (ModelScope, Zeroscope)"
    class_name = "UNet3DConditionModel"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        return {**inputs, "sample": _of_frames(inputs["sample"])}


class I2VGenFamily(TextToVideoFamily):
    name = "I2VGen-XL"
    class_name = "I2VGenXLUNet"
    conditions = ("encoder_hidden_states", "image_embeddings")

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        width = inputs["encoder_hidden_states"].shape[-1]
        more = {
            "fps": torch.full((batch,), 16, device=inputs["sample"].device),
            "image_latents": inputs["sample"],
            "image_embeddings": torch.randn(batch, width, **new_like(model)),
        }
        return {**inputs, **more}


class StableVideoFamily(UNetFamily):
    """Each transformer's blocks are followed by blocks over frames, so each merges by itself."""

    name = "Stable Video Diffusion"
    class_name = "UNetSpatioTemporalConditionModel"
    transformer = "TransformerSpatioTemporalModel"
    timestep_logarithmic = True
    always_interleaved = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        # The owner has blocks over frames too, which need every token.
        return [replace(stack, norm="") for stack in super().stacks(model)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        shape = config.num_frames, config.in_channels, size[0] // 8, size[1] // 8
        return {
            "sample": torch.randn(batch, *shape, **new),
            "timestep": torch.full((), 1.6, device=new["device"]),
            "encoder_hidden_states": torch.randn(batch, 1, config.cross_attention_dim, **new),
            "added_time_ids": torch.ones(batch, 3, **new),
        }


def _of_frames(sample: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, frames, H, W)"""
    return sample.unsqueeze(2).repeat(1, 1, FRAMES, 1, 1)
