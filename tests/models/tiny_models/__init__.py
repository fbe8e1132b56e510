"""The smallest models of every family, of the real classes and with random weights, and calls for them."""

from __future__ import annotations

from packaging.version import Version

from tiny_models.base import DIFFUSERS, TinyModel, made, per_sample, prompt
from tiny_models.cross_attention import pixart, pixart_inputs, sana, sana_inputs
from tiny_models.joint_attention import (
    auraflow,
    auraflow_inputs,
    flux,
    flux2,
    flux2_inputs,
    flux_inputs,
    qwen_image,
    qwen_inputs,
    sd3,
    sd3_inputs,
)
from tiny_models.single_stream import lumina2, lumina2_inputs, z_image, z_image_inputs
from tiny_models.unets import sd15_unet, sdxl_inputs, sdxl_unet, unet_inputs
from tiny_models.video import hunyuan_inputs, hunyuan_video, ltx, ltx_inputs, wan, wan_inputs

__all__ = ["DIFFUSERS", "TINY_MODELS", "TinyModel", "made", "per_sample", "prompt", "tiny"]

ALL_TINY_MODELS = [
    TinyModel("sd15", sd15_unet, unet_inputs, own_keys=True, makes_tokens=("norm",)),
    TinyModel("sdxl", sdxl_unet, sdxl_inputs, own_keys=True),
    TinyModel("pixart", pixart, pixart_inputs, own_keys=True, makes_tokens=("pos_embed",)),
    TinyModel("flux", flux, flux_inputs, text=5, makes_tokens=("x_embedder",), makes_positions=("pos_embed",)),
    TinyModel("sd3", sd3, sd3_inputs, text=5, makes_tokens=("pos_embed",)),
    TinyModel(
        "flux2",
        flux2,
        flux2_inputs,
        text=5,
        makes_tokens=("x_embedder",),
        makes_positions=("pos_embed",),
        since="0.36",
    ),
    TinyModel(
        "qwen-image",
        qwen_image,
        qwen_inputs,
        text=5,
        makes_tokens=("img_in",),
        makes_positions=("pos_embed",),
    ),
    TinyModel("sana", sana, sana_inputs, scopes=("site",), merges_keys=False),
    TinyModel("auraflow", auraflow, auraflow_inputs, text=13, makes_tokens=("pos_embed",)),  # 8 are registers
    TinyModel("wan", wan, wan_inputs, video=True, makes_tokens=("patch_embedding",), makes_positions=("rope",)),
    TinyModel("ltx", ltx, ltx_inputs, video=True, makes_tokens=("proj_in",), makes_positions=("rope",)),
    TinyModel(
        "hunyuan-video",
        hunyuan_video,
        hunyuan_inputs,
        text=5,
        video=True,
        makes_tokens=("x_embedder",),
        makes_positions=("rope",),
    ),
    TinyModel(
        "z-image",
        z_image,
        z_image_inputs,
        text=32,
        makes_tokens=("2-1",),
        timestep="t",
        timestep_rises=True,
        since="0.36",
    ),
    TinyModel("lumina2", lumina2, lumina2_inputs, text=4, timestep_rises=True),
]
# What an older release of diffusers lacks cannot be tested there.
TINY_MODELS = [model for model in ALL_TINY_MODELS if Version(model.since) <= DIFFUSERS]


def tiny(name: str) -> TinyModel:
    return next(model for model in TINY_MODELS if model.name == name)
