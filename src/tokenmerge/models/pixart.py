"""PixArt-alpha and PixArt-Sigma: `PixArtTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import new_like
from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.unet import basic_parts


class PixArtFamily(LatentFamily):
    """One stack of blocks over the patches of the latent; positions are added before the first."""

    name = "PixArt (alpha, Sigma)"
    class_name = "PixArtTransformer2DModel"
    runs = (Run("transformer_blocks", basic_parts),)
    text = 120, "caption_channels"

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        added: dict[str, Any] = {"resolution": None, "aspect_ratio": None}
        if model.use_additional_conditions:
            new = new_like(model)
            ratio = torch.tensor([[size[0] / size[1]]] * batch, **new)
            added = {"resolution": torch.tensor([size] * batch, **new), "aspect_ratio": ratio}
        return {**super().example_inputs(model, size, batch), "added_cond_kwargs": added}
