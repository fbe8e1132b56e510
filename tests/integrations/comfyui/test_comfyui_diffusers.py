"""The same weights of a Flux in ComfyUI and in diffusers, merged by the same preset."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import comfy.samplers
import comfy.sd
import pytest
import torch
from diffusers import FluxTransformer2DModel
from einops import rearrange
from probes import largest_difference
from small_models import FLUX, TEXT, WIDTH, randomised, sample, text
from torch import Tensor

import tokenmerge as tm
from tokenmerge.integrations.comfyui.sampling import Merging
from tokenmerge.presets import preset

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


def sampled_in_diffusers(model: FluxTransformer2DModel, sigmas: Tensor) -> Tensor:
    """Euler's method, as ComfyUI's sampler of that name."""
    [[embeddings, extras]] = text(1)
    noise = torch.randn(1, 16, *SIZE, generator=torch.Generator().manual_seed(5))
    rows, columns = SIZE[0] // 2, SIZE[1] // 2
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1], ids[..., 2] = torch.arange(rows)[:, None], torch.arange(columns)[None]
    inputs: dict[str, Any] = {
        "encoder_hidden_states": embeddings,
        "pooled_projections": extras["pooled_output"][:, :WIDTH],
        "img_ids": ids.flatten(0, 1),
        "txt_ids": torch.zeros(TEXT, 3),
        "guidance": torch.full((1,), 3.5),
    }
    latents = sigmas[0] * noise
    with torch.no_grad():
        for sigma, following in pairwise(sigmas):
            packed = rearrange(latents, "b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2)
            velocity = model(hidden_states=packed, timestep=sigma[None], **inputs, return_dict=False)[0]
            velocity = rearrange(velocity, "b (h w) (c p q) -> b c (h p) (w q)", h=rows, p=2, q=2)
            latents = latents + (following - sigma) * velocity
    return latents


@pytest.mark.parametrize("name", ["quality", "balanced", "fast"])
def test_both_agree(name: Any) -> None:
    other = in_diffusers()
    model = in_comfyui(other)
    sigmas = comfy.samplers.calculate_sigmas(model.model.model_sampling, "simple", STEPS)
    plain = sample(model, SIZE, steps=STEPS)
    unscaled = model.model.process_latent_in
    assert largest_difference(sampled_in_diffusers(other, sigmas), unscaled(plain)) < 1e-3
    merged = sample(Merging(preset(name, model.model.diffusion_model)).on(model), SIZE, steps=STEPS)
    with tm.merged(other, name):
        expected = sampled_in_diffusers(other, sigmas)
    assert largest_difference(unscaled(merged), expected) < 1e-3
    assert largest_difference(merged, plain) > 1e-3
