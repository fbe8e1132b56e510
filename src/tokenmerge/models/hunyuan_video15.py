"""HunyuanVideo 1.5: `HunyuanVideo15Transformer3DModel`."""

from __future__ import annotations

from typing import Any

from torch import nn

from tokenmerge.models.base import Part
from tokenmerge.models.builders import LatentFamily, Run
from tokenmerge.models.hunyuan_video import DOUBLE_ROTARY
from tokenmerge.models.meta_masks import let_masks_be_true

# Its attention makes a mask of all queries and keys from the one of the text that it is given.
PARTS = (Part(("self",), "attn", mask="inside", text_mask=True, text="last"), Part(("mlp",), "ff"))
WRITTEN_TOKENS = 256  # of a text that is to be written
IMAGE_TOKENS = 729  # of the image that a video begins with, from SigLIP


class HunyuanVideo15Family(LatentFamily):
    """One stack of joint blocks over frames, rows and columns; text stands behind the video."""

    name = "HunyuanVideo 1.5"
    class_name = "HunyuanVideo15Transformer3DModel"
    video = True
    pixels = 16
    conditions = ("encoder_hidden_states", "encoder_hidden_states_2", "image_embeds")
    runs = (Run("transformer_blocks", PARTS, output=0, rotary=DOUBLE_ROTARY),)
    frames = 31  # of 121
    text = 1000, "text_embed_dim"
    text_mask = "encoder_attention_mask"
    embeddings = (
        ("encoder_hidden_states_2", WRITTEN_TOKENS, "text_embed_2_dim"),
        ("image_embeds", IMAGE_TOKENS, "image_embed_dim"),
    )

    def prepare_meta(self, model: nn.Module) -> None:
        let_masks_be_true(model)

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        inputs = super().example_inputs(model, size, batch)
        return {**inputs, "encoder_attention_mask_2": inputs["encoder_attention_mask"][:, :WRITTEN_TOKENS]}
