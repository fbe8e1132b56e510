"""AuraFlow: `AuraFlowTransformer2DModel`."""

from __future__ import annotations

from tokenmerge.models.base import Part
from tokenmerge.models.builders import LatentFamily, Run

JOINT_PARTS = (Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "ff"))
# Single blocks get text and image in one sequence, joined once before the first of them.
SINGLE_PARTS = (Part(("self",), "attn", mask="inside", text="first"), Part(("mlp",), "ff", text="first"))


class AuraFlowFamily(LatentFamily):
    """Joint blocks, then single blocks, in one stack; positions are added before the first."""

    name = "AuraFlow"
    class_name = "AuraFlowTransformer2DModel"
    runs = Run("joint_transformer_blocks", JOINT_PARTS, output=1), Run("single_transformer_blocks", SINGLE_PARTS)
    time = 0.5
    text = 256, "joint_attention_dim"
