"""Real architectures at full size, by name and without a download: on the meta device, or with random weights.

The values are those of the models' published configurations, so shapes, tokens and multiply-adds are the real ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tokenmerge.errors import ConfigError, UnsupportedModelError

ALL_CROSS_ATTENTION = {
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    "block_out_channels": (320, 640, 1280, 1280),
}
SD3_SHARED = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
}
PIXART_SHARED = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "cross_attention_dim": 1152,
    "caption_channels": 4096,
    "interpolation_scale": 2,
}
FLUX_SHARED = {
    "patch_size": 1,
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "axes_dims_rope": (16, 56, 56),
}


@dataclass(frozen=True)
class Architecture:
    """A denoising model that people use, described well enough to build it."""

    title: str  # what people call it
    class_name: str  # in diffusers
    pixels: int  # side of the square image it was made for
    config: dict[str, Any]
    # The config entries that `blocks` sets; empty where blocks cannot be cut, as in a UNet.
    depth: tuple[str, ...] = field(default=())


ARCHITECTURES: dict[str, Architecture] = {
    "sd15": Architecture(
        "Stable Diffusion 1.5",
        "UNet2DConditionModel",
        512,
        {
            **ALL_CROSS_ATTENTION,
            "sample_size": 64,
            "cross_attention_dim": 768,
            "attention_head_dim": 8,
        },
    ),
    "sd21": Architecture(
        "Stable Diffusion 2.1",
        "UNet2DConditionModel",
        768,
        {
            **ALL_CROSS_ATTENTION,
            "sample_size": 96,
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
            "upcast_attention": True,
        },
    ),
    "sdxl": Architecture(
        "Stable Diffusion XL base",
        "UNet2DConditionModel",
        1024,
        {
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (320, 640, 1280),
            "transformer_layers_per_block": (1, 2, 10),
            "cross_attention_dim": 2048,
            "attention_head_dim": (5, 10, 20),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
    "sdxl-refiner": Architecture(
        "Stable Diffusion XL refiner",
        "UNet2DConditionModel",
        1024,
        {
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (384, 768, 1536, 1536),
            "transformer_layers_per_block": 4,
            "cross_attention_dim": 1280,
            "attention_head_dim": (6, 12, 24, 24),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2560,
        },
    ),
    "pixart": Architecture(
        "PixArt-alpha, 1024 px",
        "PixArtTransformer2DModel",
        1024,
        {**PIXART_SHARED, "use_additional_conditions": True},
        ("num_layers",),
    ),
    "pixart-sigma": Architecture(
        "PixArt-Sigma, 1024 px",
        "PixArtTransformer2DModel",
        1024,
        {**PIXART_SHARED, "use_additional_conditions": False},
        ("num_layers",),
    ),
    "sd3-medium": Architecture(
        "Stable Diffusion 3 medium",
        "SD3Transformer2DModel",
        1024,
        {**SD3_SHARED, "num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536},
        ("num_layers",),
    ),
    "sd35-medium": Architecture(
        "Stable Diffusion 3.5 medium",
        "SD3Transformer2DModel",
        1024,
        {
            **SD3_SHARED,
            "num_layers": 24,
            "num_attention_heads": 24,
            "caption_projection_dim": 1536,
            "qk_norm": "rms_norm",
            "dual_attention_layers": tuple(range(13)),
            "pos_embed_max_size": 384,
        },
        ("num_layers",),
    ),
    "sd35-large": Architecture(
        "Stable Diffusion 3.5 large",
        "SD3Transformer2DModel",
        1024,
        {
            **SD3_SHARED,
            "num_layers": 38,
            "num_attention_heads": 38,
            "caption_projection_dim": 2432,
            "qk_norm": "rms_norm",
        },
        ("num_layers",),
    ),
    "flux": Architecture(
        "Flux.1 dev",
        "FluxTransformer2DModel",
        1024,
        {**FLUX_SHARED, "guidance_embeds": True},
        ("num_layers", "num_single_layers"),
    ),
    "flux-schnell": Architecture(
        "Flux.1 schnell",
        "FluxTransformer2DModel",
        1024,
        {**FLUX_SHARED, "guidance_embeds": False},
        ("num_layers", "num_single_layers"),
    ),
}


def architecture(name: str) -> Architecture:
    """The architecture of that name; an unknown name is an error that suggests one."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    near = difflib.get_close_matches(name, ARCHITECTURES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(ARCHITECTURES)}."
    raise ConfigError(f"{name!r} is not an architecture that tokenmerge can build: {hint}")


def build(
    name: str,
    device: str | torch.device = "meta",
    dtype: torch.dtype = torch.float32,
    blocks: Sequence[int] | None = None,
) -> nn.Module:
    """A bare diffusers model of full size, in eval mode and without gradients.

    On "meta" it has shapes and no weights, and takes next to no memory. On a real device its weights are random, the
    same ones each time, and it takes the memory the real model takes.

    blocks: fewer blocks than the real model has, to fit small memory: (double, single) for Flux, (blocks,) for PixArt
        and SD3.

    >>> sum(weight.numel() for weight in build("sd15").parameters())
    859520964
    """
    known = architecture(name)
    config = dict(known.config)
    if blocks is not None:
        config.update(_depth(name, known, blocks))
    return build_from_config(known.class_name, config, device, dtype)


def build_from_config(
    class_name: str,
    config: dict[str, Any],
    device: str | torch.device = "meta",
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A diffusers model of any class from its configuration, without weights on "meta", else with random ones."""
    import diffusers

    kind: Any = getattr(diffusers, class_name, None)
    if not hasattr(kind, "from_config") or not issubclass(kind, diffusers.ModelMixin):
        raise UnsupportedModelError(
            f"diffusers {diffusers.__version__} has no model class {class_name}: update diffusers, or name another "
            f"model."
        )
    device = torch.device(device)
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)
        # A model made in half precision never takes the memory of a full one.
        torch.set_default_dtype(dtype)
        try:
            model: nn.Module = kind.from_config(config)
        finally:
            torch.set_default_dtype(default)
    # Tables that diffusers computes with numpy are made on the CPU, whatever the device.
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _depth(name: str, known: Architecture, blocks: Sequence[int]) -> dict[str, Any]:
    """The config entries that cut a model down to so many blocks."""
    whole = [known.config[entry] for entry in known.depth]
    if not whole:
        raise ConfigError(
            f"blocks is {tuple(blocks)!r}, and {name} is a UNet whose blocks cannot be cut: leave it out."
        )
    if len(blocks) != len(whole) or not all(1 <= count <= most for count, most in zip(blocks, whole, strict=True)):
        counts = ", ".join(f"1 to {most}" for most in whole)
        raise ConfigError(f"blocks is {tuple(blocks)!r}: for {name} it takes {len(whole)} whole numbers ({counts}).")
    entries: dict[str, Any] = dict(zip(known.depth, blocks, strict=True))
    if "dual_attention_layers" in known.config:
        entries["dual_attention_layers"] = tuple(
            layer for layer in known.config["dual_attention_layers"] if layer < blocks[0]
        )
    return entries
