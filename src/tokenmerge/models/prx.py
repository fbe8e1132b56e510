"""PRX: `PRXTransformer2DModel`."""

from __future__ import annotations

from torch import Tensor

from tokenmerge.models.base import Part, Rotary, rows_at
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (
    # Only the image asks; keys are of text and image.
    Part(("self",), "attention", mask="inside", text="first", text_mask=True),
    Part(("mlp",), "post_attention_layernorm", "down_proj", enters_at="output"),
)


def _rows_at(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    """(B, 1, S, ...): heads, which share them, stand before the rows."""
    return rows_at(rows.squeeze(1), places, tokens).unsqueeze(1)


class PRXFamily(LatentFamily):
    """One stack of blocks on the image, whose attention reads the text, the same in all of them, too."""

    name = "PRX"
    class_name = "PRXTransformer2DModel"
    runs = (Run("blocks", PARTS, rotary=Rotary("image_rotary_emb", _rows_at, per_sample=True)),)
    time = 0.5
    text = 256, "context_in_dim"
    text_mask = "attention_mask"
