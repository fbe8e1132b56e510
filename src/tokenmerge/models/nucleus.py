"""Nucleus-Image: `NucleusMoEImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Stack
from tokenmerge.models.builders import Run
from tokenmerge.models.qwen_image import ROTARY, QwenImageFamily

PARTS = (
    # Only the image asks; keys are of image and text.
    Part(("self",), "attn", mask="inside", text="last"),
    # Experts are given tokens as the norm returns them too, to be chosen by.
    Part(("mlp",), "pre_mlp_norm", "img_mlp", enters_at="output"),
)


class NucleusFamily(QwenImageFamily):
    """One stack of blocks on the image, with experts that choose their tokens; attention reads the text too."""

    name = "Nucleus-Image"
    class_name = "NucleusMoEImageTransformer2DModel"
    runs = (Run("transformer_blocks", PARTS, rotary=ROTARY),)

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, *self.runs)]

    def prepare_meta(self, model: nn.Module) -> None:
        # Each expert has equally many tokens, but is asked how many.
        for module in model.modules():
            if hasattr(module, "gate_up_proj"):
                module.forward = _Experts(module)  # type: ignore[assignment]


class _Experts:
    """What experts compute if each has equally many tokens."""

    def __init__(self, experts: Any) -> None:
        self.up, self.down = experts.gate_up_proj, experts.down_proj

    def __call__(self, tokens: Tensor, counts: Tensor) -> Tensor:
        gate, up = torch.bmm(tokens.view(self.up.shape[0], -1, tokens.shape[-1]), self.up).chunk(2, dim=-1)
        return torch.bmm(gate * up, self.down).view(tokens.shape)
