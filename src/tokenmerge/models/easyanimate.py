"""EasyAnimate 5.1: `EasyAnimateTransformer3DModel`."""

from __future__ import annotations

from typing import Any

from tokenmerge.models.base import Part, Rotary, cos_sin_at
from tokenmerge.models.builders import LatentFamily, Run

ATTENTION = Part(("self",), "attn1", mask="4d", text="first")


def _parts(block: Any) -> tuple[Part, ...]:
    # An MLP that is called a second time, for the text, cannot tell which of the two it is given.
    return (ATTENTION,) if block.txt_ff is None else (ATTENTION, Part(("mlp",), "ff"))


class EasyAnimateFamily(LatentFamily):
    """One stack of joint blocks over frames, rows and columns. The last blocks may have one MLP for text and video."""

    name = "EasyAnimate"
    class_name = "EasyAnimateTransformer3DModel"
    video = True
    runs = (Run("transformer_blocks", _parts, output=0, rotary=Rotary("image_rotary_emb", cos_sin_at)),)
    frames = 13  # of 49
    text = 256, "text_embed_dim"
