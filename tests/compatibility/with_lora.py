"""LoRA by peft, through the pipelines' own loaders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict
from row import Row
from tiny_models import made
from tiny_models.joint_attention import flux
from tiny_models.unets import sd15_unet, sdxl_unet
from tiny_pipelines import flux_pipeline, sdxl, stable_diffusion
from torch import Tensor, nn

UNET_LAYERS = ["attn1.to_q", "attn2.to_v", "ff.net.0.proj"]
# Tokens leave a single block of Flux through proj_out.
FLUX_LAYERS = ["to_q", "to_v", "proj_mlp", "proj_out", "ff.net.0.proj"]


def weights(build: Callable[[], nn.Module], prefix: str, layers: list[str], seed: int) -> dict[str, Tensor]:
    """A LoRA as it stands in a file."""
    model: Any = made(build)
    torch.manual_seed(seed)
    model.add_adapter(LoraConfig(r=2, lora_alpha=2, target_modules=layers, init_lora_weights=False))
    return {f"{prefix}.{name}": value for name, value in get_peft_model_state_dict(model).items()}


@cache
def weights_for(kind: str, seed: int) -> dict[str, Tensor]:
    if "Flux" in kind:
        return weights(flux, "transformer", FLUX_LAYERS, seed)
    return weights(sdxl_unet if "XL" in kind else sd15_unet, "unet", UNET_LAYERS, seed)


def load(pipe: Any) -> Any:
    pipe.load_lora_weights(dict(weights_for(type(pipe).__name__, seed=1)), adapter_name="one")
    return pipe


def load_two(pipe: Any) -> Any:
    load(pipe)
    pipe.load_lora_weights(dict(weights_for(type(pipe).__name__, seed=2)), adapter_name="two")
    pipe.set_adapters(["one", "two"], adapter_weights=[0.7, 0.4])
    return pipe


def fuse(pipe: Any) -> Any:
    load(pipe).fuse_lora()
    return pipe


def fuse_and_unload(pipe: Any) -> Any:
    fuse(pipe).unload_lora_weights()
    return pipe


def unfuse(pipe: Any) -> Any:
    fuse(pipe).unfuse_lora()
    return pipe


def unload(pipe: Any) -> Any:
    load(pipe).unload_lora_weights()
    return pipe


SWITCHES = {
    "loaded": load,
    "two adapters with weights": load_two,
    "fused": fuse,
    "fused, then unloaded": fuse_and_unload,
    "fused, then unfused": unfuse,
    "loaded, then unloaded": unload,
}
ROWS = [
    Row("LoRA (peft)", name, on, build, switch_on, changes=switch_on is not unload)
    for name, switch_on in SWITCHES.items()
    for on, build in (("SD 1.5", stable_diffusion), ("SDXL", sdxl), ("Flux", flux_pipeline))
    if on != "SDXL" or switch_on is load_two
]
