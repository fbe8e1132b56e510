"""Nucleus-Image: `NucleusMoEImageTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Stack, new_like
from tokenmerge.models.builders import blocks_of
from tokenmerge.models.qwen_image import ROTARY, QwenImageFamily, grid_of_shapes

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

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=ROTARY)
        return [Stack("transformer_blocks", "transformer_blocks", model, grid_of_shapes, blocks)]

    def prepare_meta(self, model: nn.Module) -> None:
        # Each expert has equally many tokens, but is asked how many.
        for module in model.modules():
            if hasattr(module, "gate_up_proj"):
                module.forward = _Experts(module)  # type: ignore[assignment]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # 16 pixels a side make a token; 512 is the length of a prompt.
        rows, columns = size[0] // 16, size[1] // 16
        return {
            "hidden_states": torch.randn(batch, rows * columns, config.in_channels, **new),
            "img_shapes": [(1, rows, columns)] * batch,
            "encoder_hidden_states": torch.randn(batch, 512, config.joint_attention_dim, **new),
            "timestep": torch.full((batch,), 0.5, **new),
        }


class _Experts:
    """What experts compute if each has equally many tokens."""

    def __init__(self, experts: Any) -> None:
        self.up, self.down = experts.gate_up_proj, experts.down_proj

    def __call__(self, tokens: Tensor, counts: Tensor) -> Tensor:
        gate, up = torch.bmm(tokens.view(self.up.shape[0], -1, tokens.shape[-1]), self.up).chunk(2, dim=-1)
        return torch.bmm(gate * up, self.down).view(tokens.shape)
