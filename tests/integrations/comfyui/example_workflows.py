"""The example workflows, in the API's format, with where each node stands."""

from __future__ import annotations

from typing import Any

from workflows import node

Places = dict[str, list[int]]
SAMPLER = {"seed": 1, "steps": 25, "cfg": 6.0, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1.0}


def merge(model: str, preset: str) -> dict[str, Any]:
    return node("TokenMerge", model=[model, 0], preset=preset, start_percent=0.0, end_percent=1.0)


def sdxl() -> tuple[dict[str, Any], Places]:
    links = {"model": ["2", 0], "positive": ["3", 0], "negative": ["4", 0], "latent_image": ["5", 0]}
    workflow = {
        "1": node("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors"),
        "2": merge("1", "balanced"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="a crate of red apples on a market stall"),
        "4": node("CLIPTextEncode", clip=["1", 1], text=""),
        "5": node("EmptyLatentImage", width=1024, height=1024, batch_size=1),
        "6": node("KSampler", **SAMPLER, **links),
        "7": node("VAEDecode", samples=["6", 0], vae=["1", 2]),
        "8": node("SaveImage", images=["7", 0], filename_prefix="token-merge"),
        "9": node("TokenMergeExplain", model=["2", 0], after=["6", 0]),
    }
    places = {"1": [0, 0], "2": [470, 0], "3": [0, 160], "4": [0, 420], "5": [0, 680]}
    places |= {"6": [820, 0], "7": [1170, 0], "8": [1170, 130], "9": [820, 480]}
    return workflow, places


def flux() -> tuple[dict[str, Any], Places]:
    sampler = {**SAMPLER, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple"}
    links = {"model": ["2", 0], "positive": ["6", 0], "negative": ["6", 0], "latent_image": ["7", 0]}
    workflow = {
        "1": node("UNETLoader", unet_name="flux1-dev.safetensors", weight_dtype="default"),
        "2": merge("1", "quality"),
        "3": node("DualCLIPLoader", clip_name1="clip_l.safetensors", clip_name2="t5xxl_fp16.safetensors", type="flux"),
        "4": node("VAELoader", vae_name="ae.safetensors"),
        "5": node("CLIPTextEncode", clip=["3", 0], text="a crate of red apples on a market stall"),
        "6": node("FluxGuidance", conditioning=["5", 0], guidance=3.5),
        "7": node("EmptySD3LatentImage", width=1024, height=1024, batch_size=1),
        "8": node("KSampler", **sampler, **links),
        "9": node("VAEDecode", samples=["8", 0], vae=["4", 0]),
        "10": node("SaveImage", images=["9", 0], filename_prefix="token-merge"),
        "11": node("TokenMergeExplain", model=["2", 0], after=["8", 0]),
    }
    places = {"1": [0, 0], "2": [360, 0], "3": [0, 160], "4": [0, 380], "5": [360, 200], "6": [360, 460], "7": [0, 500]}
    places |= {"8": [800, 0], "9": [1140, 0], "10": [1140, 130], "11": [800, 480]}
    return workflow, places


def hires_fix() -> tuple[dict[str, Any], Places]:
    """Two samplers, each with its own preset."""
    first, places = sdxl()
    larger = {"model": ["10", 0], "positive": ["3", 0], "negative": ["4", 0], "latent_image": ["11", 0]}
    workflow = {
        **first,
        "2": merge("1", "quality"),
        "7": node("VAEDecode", samples=["12", 0], vae=["1", 2]),
        "9": node("TokenMergeExplain", model=["10", 0], after=["12", 0]),
        "10": merge("1", "fast"),
        "11": node("LatentUpscaleBy", samples=["6", 0], upscale_method="bislerp", scale_by=1.5),
        "12": node("KSampler", **{**SAMPLER, "denoise": 0.5}, **larger),
    }
    places |= {"10": [470, 200], "11": [1170, 0], "12": [1170, 170], "7": [1520, 0], "8": [1520, 130], "9": [1520, 470]}
    return workflow, places


# What the workflows load, by ComfyUI's folders.
FILES = (
    "checkpoints/sd_xl_base_1.0.safetensors",
    "diffusion_models/flux1-dev.safetensors",
    "text_encoders/clip_l.safetensors",
    "text_encoders/t5xxl_fp16.safetensors",
    "vae/ae.safetensors",
)
EXAMPLES = {"token-merge-sdxl": sdxl, "token-merge-flux": flux, "token-merge-hires-fix": hires_fix}
