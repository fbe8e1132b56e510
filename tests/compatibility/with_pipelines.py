"""Other pipelines on the same models, pipelines after one another, and ways to give a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from row import Row, as_it_is
from tiny_pipelines import (
    SIZE,
    embeddings,
    flux_pipeline,
    generate,
    quiet,
    refiner,
    sdxl,
    smooth_image,
    stable_diffusion,
)
from torch import Tensor, nn


def become(name: str, pipe: Any) -> Any:
    """Another pipeline with the same models."""
    import diffusers

    return quiet(getattr(diffusers, name).from_pipe(pipe))


def mask() -> Tensor:
    whole = torch.zeros(1, 1, SIZE, SIZE)
    whole[..., 32:96, 32:96] = 1
    return whole


def from_image(pipe: Any, **more: Any) -> Tensor:
    """Half of four steps are left at this strength."""
    arguments: dict[str, Any] = {"image": smooth_image(), "strength": 0.5, "steps": 4}
    if "XLImg2Img" in type(pipe).__name__ or type(pipe).__name__ == "StableDiffusionImg2ImgPipeline":
        arguments |= {"height": None, "width": None}  # those of the image
    return generate_given(pipe, **arguments, **more)


def generate_given(pipe: Any, **arguments: Any) -> Tensor:
    """`generate` for pipelines that take their size from the image."""
    steps, seed = arguments.pop("steps"), 7
    given = {name: value for name, value in arguments.items() if value is not None}
    if {"height", "width"} <= arguments.keys():
        generator = torch.Generator().manual_seed(seed)
        latents: Tensor = pipe(
            prompt="red cat", num_inference_steps=steps, generator=generator, output_type="latent", **given
        ).images
        return latents
    return generate(pipe, seed=seed, steps=steps, **given)


@dataclass
class Stages:
    """Two pipelines, of which the second goes on with what the first has made."""

    first: Any
    second: Any


def both(stages: Stages) -> list[Any]:
    return [stages.first, stages.second]


def base_and_refiner() -> Stages:
    return Stages(sdxl(), refiner())


def hand_over(stages: Stages) -> Tensor:
    """The refiner takes over at half of the noise."""
    latents = generate(stages.first, steps=4, denoising_end=0.5)
    return from_latents(stages.second, latents, denoising_start=0.5)


def from_latents(pipe: Any, latents: Tensor, **more: Any) -> Tensor:
    generator = torch.Generator().manual_seed(8)
    arguments = {"prompt": "red cat", "num_inference_steps": 4, "output_type": "latent", "generator": generator}
    generated: Tensor = pipe(image=latents, **arguments, **more).images
    return generated


def first_alone(stages: Stages) -> Tensor:
    return generate(stages.first)


def generate_larger(pipe: Any) -> Tensor:
    """An image, then the same larger and with the same model."""
    latents = generate(pipe)
    larger = nn.functional.interpolate(latents, scale_factor=1.5)
    return from_latents(become("StableDiffusionXLImg2ImgPipeline", pipe), larger, strength=0.5)


def weighted(pipe: Any) -> Tensor:
    """What libraries for prompt weighting do: scale the embeddings of some words."""
    words, negative = pipe.encode_prompt("red cat", "cpu", 1, True, "")[:2]
    words[:, 2:4] *= 1.4
    return generate(pipe, prompt=None, prompt_embeds=words, negative_prompt_embeds=negative)


def guided_flux(pipe: Any) -> Tensor:
    """Flux guides by two calls at each step."""
    negative = {f"negative_{name}": value for name, value in embeddings(seed=5).items()}
    return generate(pipe, true_cfg_scale=2.0, **negative)


def several(pipe: Any) -> Tensor:
    return generate(pipe, num_images_per_prompt=3)


def generated_with(**arguments: Any) -> Callable[[Any], Tensor]:
    return partial(generate, **arguments)


def staged(name: str, **more: Any) -> Row:
    return Row("pipelines", name, "SDXL", base_and_refiner, as_it_is, hand_over, first_alone, both, **more)


SD, XL, FLUX = ("SD 1.5", stable_diffusion), ("SDXL", sdxl), ("Flux", flux_pipeline)
ROWS = [
    Row("pipelines", "img2img", *SD, partial(become, "StableDiffusionImg2ImgPipeline"), from_image),
    Row("pipelines", "img2img", *XL, partial(become, "StableDiffusionXLImg2ImgPipeline"), from_image),
    Row("pipelines", "img2img", *FLUX, partial(become, "FluxImg2ImgPipeline"), from_image),
    Row(
        "pipelines",
        "inpaint",
        *SD,
        partial(become, "StableDiffusionInpaintPipeline"),
        partial(from_image, mask_image=mask()),
    ),
    staged("hand-over to the refiner"),
    staged("two stages, 0.5 and then 0.25", ratios=(0.5, 0.25)),
    Row("pipelines", "the same image larger, by the same model", *XL, generate=generate_larger),
    Row("prompts", "weighted embeddings", *SD, generate=weighted),
    Row("prompts", "negative prompt", *SD, generate=generated_with(negative_prompt="blue dog")),
    Row("prompts", "negative prompt (two calls a step)", *FLUX, generate=guided_flux),
    Row("prompts", "guidance off", *SD, generate=generated_with(guidance_scale=1.0)),
    Row("prompts", "guidance rescale", *SD, generate=generated_with(guidance_rescale=0.7)),
    Row("prompts", "three images at once", *SD, generate=several),
    Row("prompts", "three images at once", *FLUX, generate=several),
]
