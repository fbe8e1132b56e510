"""Caches that leave layers out at some steps, by diffusers' `enable_cache`. All run four steps or more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from row import Row
from tiny_models import made, prompt
from tiny_models.cross_attention import pixart
from tiny_pipelines import flux_pipeline, generate
from torch import Tensor, nn

ALL_TIMES = (-1, 1001)
LATER = (-1, 800)  # FasterCache needs a first step to keep something of


def first_block(pipe: Any) -> Any:
    from diffusers import FirstBlockCacheConfig

    return cached(pipe, FirstBlockCacheConfig(threshold=0.5))


def pyramid(pipe: Any) -> Any:
    from diffusers import PyramidAttentionBroadcastConfig

    return cached(
        pipe,
        PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=2,
            spatial_attention_timestep_skip_range=ALL_TIMES,
            current_timestep_callback=lambda: pipe.current_timestep,
        ),
    )


def faster(pipe: Any) -> Any:
    from diffusers import FasterCacheConfig

    config = FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=LATER,
        current_timestep_callback=lambda: pipe.current_timestep,
        attention_weight_callback=lambda _: 0.3,
        tensor_format="BCHW",
        is_guidance_distilled=True,
    )
    return cached(pipe, config)


def taylor(pipe: Any, **options: Any) -> Any:
    from diffusers import TaylorSeerCacheConfig

    config = TaylorSeerCacheConfig(
        cache_interval=2, disable_cache_before_step=2, taylor_factors_dtype=torch.float32, **options
    )
    return cached(pipe, config)


def magnitude(pipe: Any) -> Any:
    from diffusers import MagCacheConfig

    return cached(pipe, MagCacheConfig(mag_ratios=[1.0] * 8, num_inference_steps=8, retention_ratio=0.2, threshold=1.0))


def cached(pipe: Any, config: Any) -> Any:
    pipe.transformer.enable_cache(config)
    return pipe


def guided_pixart() -> nn.Module:
    return made(pixart)


def halve_guidance(model: nn.Module) -> nn.Module:
    """FasterCache on a model that is guided by a doubled batch: at some steps it runs on half of it."""
    from diffusers import FasterCacheConfig, apply_faster_cache

    config = FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=ALL_TIMES,
        unconditional_batch_skip_range=2,
        unconditional_batch_timestep_skip_range=ALL_TIMES,
        current_timestep_callback=lambda: 500,
        attention_weight_callback=lambda _: 0.3,
        tensor_format="BCHW",
    )
    apply_faster_cache(model, config)
    return model


def step_by_step(model: Any) -> Tensor:
    """Four steps of a guided model without a pipeline: the first half of the batch is unconditional."""
    from diffusers.hooks import HookRegistry

    HookRegistry.check_if_exists_or_initialize(model).reset_stateful_hooks()
    latents = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(4)).repeat(2, 1, 1, 1)
    text = prompt([1, 2])
    added = {"resolution": None, "aspect_ratio": None}
    for timestep in (900.0, 700.0, 500.0, 300.0):
        times = torch.full((2,), timestep)
        with torch.no_grad():
            noise = model(
                hidden_states=latents,
                timestep=times,
                encoder_hidden_states=text,
                added_cond_kwargs=added,
                return_dict=False,
            )[0]
        latents = latents - 0.1 * noise[:, :4]
    return latents


six = partial(generate, steps=6)
eight = partial(generate, steps=8)
ATTENTION = "attention that is cached is not merged; with `parts=('mlp',)` Flux's single blocks merge as well"


def row(name: str, switch_on: Callable[[Any], Any], generate: Any = six, **more: Any) -> Row:
    return Row("caches", name, "Flux", flux_pipeline, switch_on, generate, generate, scopes=("site",), **more)


ONCE_RUN = {
    "not_on": ">=0.38,<0.41",
    "why_not": "diffusers 0.38 to 0.40 cannot switch this cache on once a model has run, merged or not",
}
TAYLOR = {**ONCE_RUN, "not_on": "<0.41", "why_not": f"diffusers 0.36 brought TaylorSeer, and {ONCE_RUN['why_not']}"}
ROWS = [
    row("FirstBlockCache", first_block, **ONCE_RUN),
    # Flux leaves its first blocks alone by default, and the cache looks at the first.
    row("FirstBlockCache, `skip_blocks=1`", first_block, options={"skip_blocks": 1}, **ONCE_RUN),
    row("PyramidAttentionBroadcast", pyramid, remark=ATTENTION),
    row("PyramidAttentionBroadcast, `parts=('mlp',)`", pyramid, options={"parts": ("mlp",)}),
    row("FasterCache (guidance-distilled)", faster, remark=ATTENTION),
    Row(
        "caches",
        "FasterCache (guided by a doubled batch)",
        "PixArt",
        guided_pixart,
        halve_guidance,
        step_by_step,
        step_by_step,
        scopes=(),
    ),
    row("TaylorSeer", taylor, remark=ATTENTION, **TAYLOR),
    row("TaylorSeer, lite", partial(taylor, use_lite_mode=True), **TAYLOR),
    row("MagCache", magnitude, eight, not_on="<0.37", why_not="diffusers 0.37 brought MagCache"),
]
