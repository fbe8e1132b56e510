"""The smallest pipelines of the real classes, with random weights: Stable Diffusion, SDXL, its refiner, and Flux."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tiny_models import made
from tiny_models.joint_attention import flux
from tiny_models.unets import sd15_unet, sdxl_unet
from torch import Tensor, nn

from tokenmerge.runtime.tiny_random import _letters

SIZE = 128  # pixels: 256 tokens at the finest level of the UNets, 64 in Flux
NOISE: dict[str, Any] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}


def stable_diffusion() -> Any:
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    return quiet(
        StableDiffusionPipeline(
            vae=autoencoder(),
            text_encoder=text_encoder(12),
            tokenizer=_letters(),
            unet=made(sd15_unet),
            scheduler=DDIMScheduler(clip_sample=False, **NOISE),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def sdxl() -> Any:
    from diffusers import DDIMScheduler, StableDiffusionXLPipeline

    return quiet(
        StableDiffusionXLPipeline(
            vae=autoencoder(),
            text_encoder=text_encoder(6),
            text_encoder_2=text_encoder(6, projection=8),
            tokenizer=_letters(),
            tokenizer_2=_letters(),
            unet=made(sdxl_unet),
            scheduler=DDIMScheduler(clip_sample=False, **NOISE),
            add_watermarker=False,
        )
    )


def refiner() -> Any:
    """SDXL's second stage: one text encoder, and a UNet that takes a wanted aesthetic score."""
    from diffusers import DDIMScheduler, StableDiffusionXLImg2ImgPipeline

    return quiet(
        StableDiffusionXLImg2ImgPipeline(
            vae=autoencoder(),
            text_encoder=None,
            text_encoder_2=text_encoder(12, projection=8),
            tokenizer=None,
            tokenizer_2=_letters(),
            unet=made(partial(sdxl_unet, time_ids=5)),
            scheduler=DDIMScheduler(clip_sample=False, **NOISE),
            requires_aesthetics_score=True,
            add_watermarker=False,
        )
    )


def flux_pipeline() -> Any:
    """Without text encoders: its prompts come as embeddings."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    return quiet(
        FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(),
            vae=autoencoder(channels=2, shift_factor=0.1),
            text_encoder=None,
            tokenizer=None,
            text_encoder_2=None,
            tokenizer_2=None,
            transformer=made(flux),
        )
    )


def autoencoder(channels: int = 4, **more: Any) -> nn.Module:
    from diffusers import AutoencoderKL

    return made(
        partial(
            AutoencoderKL,
            block_out_channels=(4, 4, 4, 4),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            norm_num_groups=2,
            latent_channels=channels,
            mid_block_add_attention=False,
            **more,
        )
    )


def text_encoder(width: int, projection: int = 0) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    letters = _letters()
    config = CLIPTextConfig(
        vocab_size=len(letters),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=projection or width,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=letters.bos_token_id,
        eos_token_id=letters.eos_token_id,
        pad_token_id=letters.pad_token_id,
    )
    return made(partial(CLIPTextModelWithProjection if projection else CLIPTextModel, config))


def quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def generate(pipe: Any, prompt: str = "red cat", seed: int = 7, steps: int = 2, **more: Any) -> Tensor:
    """The latents that a pipeline makes: two steps, so that the second reuses what the first has planned."""
    arguments: dict[str, Any] = {"height": SIZE, "width": SIZE, "output_type": "latent"}
    arguments |= {"num_inference_steps": steps, "generator": torch.Generator().manual_seed(seed)}
    given = embeddings(seed=len(prompt)) if "Flux" in type(pipe).__name__ else {"prompt": prompt}
    latents: Tensor = pipe(**{**arguments, **given, **more}).images
    return latents


def embeddings(seed: int = 3, batch: int = 1) -> dict[str, Tensor]:
    """A prompt for Flux: five tokens of text, and their summary."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "prompt_embeds": torch.randn(batch, 5, 12, generator=generator),
        "pooled_prompt_embeds": torch.randn(batch, 8, generator=generator),
    }


def smooth_image(seed: int = 11, channels: int = 3) -> Tensor:
    """(1, channels, SIZE, SIZE) from 0 to 1, smooth enough that neighbours resemble each other."""
    coarse = torch.rand(1, channels, 8, 8, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, (SIZE, SIZE), mode="bilinear")
