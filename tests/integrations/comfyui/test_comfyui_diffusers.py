"""The same weights of a Flux in ComfyUI and in diffusers, merged by the same preset."""

from __future__ import annotations

from typing import Any

import comfy.samplers
import comfy.sd
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from einops import rearrange
from probes import largest_difference
from small_models import FLUX, WIDTH, randomised, sample, text
from torch import Tensor

import tokenmerge as tm
from tokenmerge.integrations.comfyui.sampling import Merging

SIZE = (32, 48)
STEPS = 8


def in_diffusers() -> FluxTransformer2DModel:
    model = FluxTransformer2DModel(
        in_channels=64,
        num_layers=FLUX["depth"],
        num_single_layers=FLUX["depth_single_blocks"],
        attention_head_dim=128,
        num_attention_heads=1,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=True,
    )
    randomised(model)
    return model.eval()


def in_comfyui(model: FluxTransformer2DModel) -> Any:
    """ComfyUI reads files of diffusers too. It changes some of the tensors it is given."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    return comfy.sd.load_diffusion_model_state_dict(weights)


def pipeline(model: FluxTransformer2DModel) -> FluxPipeline:
    """Without what makes text and images: it is given embeddings and gives latents."""
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=False, shift=1.0)
    nothing: dict[str, Any] = dict.fromkeys(("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = FluxPipeline(scheduler=scheduler, transformer=model, **nothing)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def sampled_in_diffusers(pipe: FluxPipeline, sigmas: Tensor) -> Tensor:
    [[embeddings, extras]] = text(1)
    noise = torch.randn(1, 16, *SIZE, generator=torch.Generator().manual_seed(5))
    rows, columns = SIZE
    packed = pipe(
        prompt_embeds=embeddings,
        pooled_prompt_embeds=extras["pooled_output"][:, :WIDTH],
        latents=rearrange(noise, "b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2),
        height=8 * rows,
        width=8 * columns,
        sigmas=sigmas[:-1].tolist(),
        num_inference_steps=STEPS,
        guidance_scale=3.5,
        output_type="latent",
        return_dict=False,
    )[0]
    return rearrange(packed, "b (h w) (c p q) -> b c (h p) (w q)", h=rows // 2, p=2, q=2)


@pytest.mark.parametrize("config", ["quality", "balanced", "fast", tm.TileMean(), tm.SkipSteps()], ids=str)
def test_both_agree(config: Any) -> None:
    other = in_diffusers()
    model, pipe = in_comfyui(other), pipeline(other)
    sigmas = comfy.samplers.calculate_sigmas(model.model.model_sampling, "simple", STEPS)
    plain = sample(model, SIZE, steps=STEPS)
    unscaled = model.model.process_latent_in
    assert largest_difference(sampled_in_diffusers(pipe, sigmas), unscaled(plain)) < 1e-3
    with tm.merged(pipe, config) as handle:
        expected = sampled_in_diffusers(pipe, sigmas)
    merged = sample(Merging(handle.config).on(model), SIZE, steps=STEPS)
    assert largest_difference(unscaled(merged), expected) < 1e-3
    assert largest_difference(merged, plain) > 1e-3
