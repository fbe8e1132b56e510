"""Pipelines small enough to generate in a fraction of a second: a UNet, and a transformer guided by a second call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tokenmerge.runtime.tiny_random import build_tiny_random

STEPS = 8


@pytest.fixture
def sd() -> Any:
    return _quiet(build_tiny_random())


@pytest.fixture
def flux() -> Any:
    """Without text encoders; blocks enough for caches that look at the first ones."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            guidance_embeds=False,
            axes_dims_rope=(4, 4, 8),
        )
        autoencoder = AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
        )
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder.eval(),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer.eval(),
    )
    return _quiet(pipe)


def _quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def latents() -> Callable[..., torch.Tensor]:
    """The result of a generation before it is decoded, guided."""

    def generate(pipe: Any, steps: int = STEPS) -> torch.Tensor:
        noise = torch.Generator("cpu").manual_seed(1)
        shared = {"num_inference_steps": steps, "height": 64, "width": 64, "generator": noise, "output_type": "latent"}
        if hasattr(pipe, "unet"):
            return pipe("a cat", guidance_scale=3.0, **shared).images
        texts = torch.Generator("cpu").manual_seed(2)
        embeddings = {
            name: torch.randn(*shape, generator=texts)
            for name, shape in {
                "prompt_embeds": (1, 6, 32),
                "negative_prompt_embeds": (1, 6, 32),
                "pooled_prompt_embeds": (1, 32),
                "negative_pooled_prompt_embeds": (1, 32),
            }.items()
        }
        return pipe(true_cfg_scale=3.0, **embeddings, **shared).images

    return generate
