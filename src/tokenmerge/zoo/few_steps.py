"""Makes a loaded pipeline a model of few steps: adds a LoRA to its UNet's weights and switches guidance off.

The LoRA is added to the weights, so a step costs what it did before, and `peft` is not needed. The file is one that
`pipe.load_lora_weights` reads too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from torch import Tensor, nn

PREFIX, DOWN, UP = "unet.", ".lora_A.weight", ".lora_B.weight"
GUIDANCE_WIDTH = 8  # of the guidance scale's embedding, which has no effect


def weight_change(down: Tensor, up: Tensor) -> Tensor:
    """What a LoRA adds to a weight: down (r, in, ...) and up (out, r, 1...) -> (out, in, ...)."""
    return (up.flatten(1) @ down.flatten(1)).view(len(up), *down.shape[1:])


@torch.no_grad()
def add_lora(unet: nn.Module, file: Path) -> None:
    """Add a LoRA whose alpha is its rank to the weights of a UNet."""
    from safetensors.torch import load_file

    tensors = {name: tensor.float() for name, tensor in load_file(file).items()}
    for name, down in tensors.items():
        if name.endswith(DOWN):
            layer = name.removesuffix(DOWN)
            weight: Any = unet.get_submodule(layer.removeprefix(PREFIX)).weight
            weight += weight_change(down, tensors[layer + UP]).to(weight)


def ignore_guidance(unet: Any) -> None:
    """Let the pipeline run one pass a step whatever its `guidance_scale`, as with latent consistency models.

    A UNet that embeds the guidance scale is not guided by a second pass. This one embeds it with weights of zero.
    """
    embedding = unet.time_embedding
    embedding.cond_proj = torch.nn.Linear(GUIDANCE_WIDTH, embedding.linear_1.in_features, bias=False)
    torch.nn.init.zeros_(embedding.cond_proj.weight)
    unet.register_to_config(time_cond_proj_dim=GUIDANCE_WIDTH)


def make_few_steps(pipe: DiffusionPipeline, lora: Path) -> None:
    """Change a loaded pipeline in place."""
    add_lora(pipe.unet, lora)
    ignore_guidance(pipe.unet)
