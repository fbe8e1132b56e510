"""HunyuanDiT: `HunyuanDiT2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at, new_like
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (Part(("self",), "attn1", mask="3d"), Part(("cross",), "attn2", rotary=True), Part(("mlp",), "ff"))


class HunyuanDiTFamily(LatentFamily):
    """Blocks with self- and cross-attention, joined by skip connections, so that only parts can be merged."""

    name = "HunyuanDiT"
    class_name = "HunyuanDiT2DModel"
    runs = (Run("blocks", PARTS, rotary=Rotary("image_rotary_emb", cos_sin_at)),)
    fixed_order = "its later blocks also read the tokens that earlier blocks gave"
    text = "text_len", "cross_attention_dim"
    embeddings = (("encoder_hidden_states_t5", "text_len_t5", "cross_attention_dim_t5"),)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        side = self.pixels * config.patch_size
        rows = torch.ones((size[0] // side) * (size[1] // side), config.attention_head_dim, **new)
        inputs: dict[str, Any] = {
            **super().example_inputs(model, size, batch),
            "text_embedding_mask": torch.ones(batch, config.text_len, **new),
            "text_embedding_mask_t5": torch.ones(batch, config.text_len_t5, **new),
            "image_rotary_emb": (rows, rows),
        }
        if config.use_style_cond_and_image_meta_size:
            inputs["image_meta_size"] = torch.ones(batch, 6, **new)
            inputs["style"] = torch.zeros(batch, dtype=torch.int64, device=new["device"])
        return inputs
