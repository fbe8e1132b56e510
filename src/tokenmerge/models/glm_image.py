"""GLM-Image: `GlmImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import new_like
from tokenmerge.models.cogview import CogView4Family


class GlmImageFamily(CogView4Family):
    """As CogView 4, with tokens of a prior that are added to the image's before the first block."""

    name = "GLM-Image"
    class_name = "GlmImageTransformer2DModel"
    conditions = ("encoder_hidden_states", "prior_token_id", "prior_token_drop")

    refused = "kv_caches"
    refused_because = (
        "GLM-Image was called with kv_caches, whose keys of images to edit are of all their tokens, and "
        "joined to keys where merging does not look: call it without kv_caches."
    )

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        side = self.pixels * config.patch_size
        tokens = (size[0] // side) * (size[1] // side)
        inputs = super().example_inputs(model, size, batch)
        del inputs["original_size"]
        inputs["prior_token_id"] = torch.zeros(batch, tokens, dtype=torch.int64, device=new["device"])
        inputs["prior_token_drop"] = torch.zeros(batch, tokens, dtype=torch.bool, device=new["device"])
        return self.countable(inputs) if new["device"].type == "meta" else inputs

    def countable(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        # The model looks up which tokens are dropped, which a tensor without values cannot say: none are.
        none = torch.empty(0, dtype=torch.int64, device="meta")
        return {**super().countable(kwargs), "prior_token_drop": none}
