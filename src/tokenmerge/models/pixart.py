"""PixArt-alpha and PixArt-Sigma: `PixArtTransformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Call, Family, Stack, patch_grid, signature_of
from tokenmerge.models.unet import basic_blocks


class PixArtFamily(Family):
    """One stack of blocks over the patches of the latent; positions are added before the first."""

    name = "PixArt (alpha, Sigma)"
    class_name = "PixArtTransformer2DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        grid = partial(patch_grid, config.patch_size)
        blocks = basic_blocks(model.transformer_blocks, "transformer_blocks")
        return [Stack("transformer_blocks", "transformer_blocks", model, grid, blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        hidden = kwargs["hidden_states"]
        return Call(kwargs.get("timestep"), signature_of(hidden))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        like = next(model.parameters())
        new: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        inputs: dict[str, Any] = {
            "hidden_states": torch.randn(batch, config.in_channels, size[0] // 8, size[1] // 8, **new),
            "timestep": torch.full((batch,), 500.0, device=like.device),
            "encoder_hidden_states": torch.randn(batch, 120, config.caption_channels, **new),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        }
        if model.use_additional_conditions:
            inputs["added_cond_kwargs"] = {
                "resolution": torch.tensor([size] * batch, **new),
                "aspect_ratio": torch.tensor([[size[0] / size[1]]] * batch, **new),
            }
        return inputs
