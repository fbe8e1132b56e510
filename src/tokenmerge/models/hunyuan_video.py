"""HunyuanVideo: `HunyuanVideoTransformer3DModel`."""

from __future__ import annotations

from typing import Any

from torch import nn

from tokenmerge.models.base import Part, Rotary, Stack, cos_sin_at
from tokenmerge.models.builders import LatentFamily, Run

DOUBLE_PARTS = (Part(("self",), "attn", mask="4d", text="last"), Part(("mlp",), "ff"))
SINGLE_PARTS = (
    Part(("self", "mlp"), "norm", "proj_out", enters_at="output", attention="attn", mask="4d", text="last"),
    Part(("self",), "attn", mask="4d", text="last"),
    Part(("mlp",), "proj_mlp", "act_mlp", text="last"),
)
DOUBLE_ROTARY = Rotary("freqs_cis", cos_sin_at, attention_argument="image_rotary_emb")
FIRST_FRAME = "this model treats the tokens of the first frame apart, by their place"


class HunyuanVideoFamily(LatentFamily):
    """Double blocks, then single blocks, over frames, rows and columns; text stands behind the image."""

    name = "HunyuanVideo"
    class_name = "HunyuanVideoTransformer3DModel"
    video = True
    runs = (
        Run("transformer_blocks", DOUBLE_PARTS, output=0, rotary=DOUBLE_ROTARY),
        Run("single_transformer_blocks", SINGLE_PARTS, output=0, rotary=Rotary("image_rotary_emb", cos_sin_at)),
    )
    frames = 33  # of 129
    text = 256, "text_embed_dim"
    text_mask = "encoder_attention_mask"
    embeddings = (("pooled_projections", "pooled_projection_dim"),)
    guidance = 6000.0

    def stacks(self, model: nn.Module) -> list[Stack]:
        config: Any = model.config
        fixed_order = FIRST_FRAME if config.image_condition_type == "token_replace" else ""
        return [self.stack(model, *self.runs, fixed_order=fixed_order)]
