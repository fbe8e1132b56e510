"""Stable Diffusion 3 and 3.5: `SD3Transformer2DModel`."""

from __future__ import annotations

from typing import Any

from tokenmerge.models.base import Part
from tokenmerge.models.builders import LatentFamily, Run


def _parts(block: Any) -> tuple[Part, ...]:
    joint, mlp = Part(("self",), "attn", mask="inside", text="last"), Part(("mlp",), "ff")
    return (joint, mlp) if block.attn2 is None else (joint, Part(("self",), "attn2", mask="inside"), mlp)


class SD3Family(LatentFamily):
    """One stack of joint blocks, some with a second attention over the image alone; positions are added before."""

    name = "Stable Diffusion 3 and 3.5"
    class_name = "SD3Transformer2DModel"
    runs = (Run("transformer_blocks", _parts, output=1),)
    between_blocks = ("block_controlnet_hidden_states", "skip_layers")  # the second comes with skip-layer guidance
    text = 77 + 256, "joint_attention_dim"  # from CLIP and from T5
    embeddings = (("pooled_projections", "pooled_projection_dim"),)
