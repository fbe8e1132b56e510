"""The embedded photo-flux in ComfyUI's own classes: a trained model, for what random weights cannot show."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch
from comfy.ldm.flux.model import Flux
from small_models import patcher
from torch import Tensor

from tokenmerge import zoo


@lru_cache
def pipeline() -> Any:
    pipe = zoo.load("photo-flux")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def channels() -> int:
    """Channels of its latents, fewer than those of a full Flux."""
    return int(pipeline().vae.config.latent_channels)


def photo_flux() -> Any:
    """As a ModelPatcher. Its heads are narrower than those by which ComfyUI recognises a Flux."""
    other = pipeline().transformer
    heads, width = other.config.num_attention_heads, other.config.attention_head_dim
    config = {
        "in_channels": channels(),
        "out_channels": channels(),
        "patch_size": 2,
        "vec_in_dim": other.config.pooled_projection_dim,
        "context_in_dim": other.config.joint_attention_dim,
        "hidden_size": heads * width,
        "mlp_ratio": 4.0,
        "num_heads": heads,
        "depth": other.config.num_layers,
        "depth_single_blocks": other.config.num_single_layers,
        "axes_dim": list(other.config.axes_dims_rope),
        "theta": 10000,
        "qkv_bias": True,
        "guidance_embed": False,
        "txt_ids_dims": [],
    }
    settings = comfy.supported_models.Flux({**config, "dtype": torch.float32})
    settings.unet_config = {**config, "dtype": torch.float32}
    base = comfy.model_base.Flux(settings)
    model = patcher(base)
    base.diffusion_model.load_state_dict(converted(other.state_dict(), config))
    return model


def converted(weights: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Weights of diffusers under ComfyUI's names, by ComfyUI's own table."""
    result: dict[str, Tensor] = {}
    weightless = Flux(**config, dtype=torch.float32, device="meta", operations=torch.nn).state_dict()
    for name, place in comfy.utils.flux_to_diffusers(config).items():
        if name not in weights:
            continue
        target, part, change = (place, None, None) if isinstance(place, str) else (*place, None)[:3]
        weight = weights[name] if change is None else change(weights[name])
        if part is None:
            result[target] = weight
            continue
        axis, begin, length = part
        whole = result.setdefault(target, torch.zeros(weightless[target].shape))
        whole.narrow(axis, begin, length).copy_(weight)
    return result


def prompt(words: str) -> Any:
    """A conditioning, as CLIPTextEncode makes it."""
    with torch.no_grad():
        embeddings, pooled, _ = pipeline().encode_prompt(words, words)
    return [[embeddings, {"pooled_output": pooled}]]
