"""One image from a pipeline: the same request starts from the same noise on every device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tokenmerge.errors import UsageError
from tokenmerge.runtime.timing import Clock

if TYPE_CHECKING:
    from PIL.Image import Image

    from tokenmerge.runtime.pipelines import LoadedPipeline

LATENT = 8  # pixels to a latent in every Stable Diffusion and Flux model
MOST_STEPS = 1000  # the schedulers are trained on this many
# The CPU's generator reads 32 bits of a seed: 2**32 would give the noise of 0, in silence.
LARGEST_SEED = 2**32 - 1
LONGEST_PROMPT = 20_000  # characters; tokenizers read some hundred


@dataclass(frozen=True)
class ImageRequest:
    """What to generate. None leaves a value to the model."""

    prompt: str
    negative: str | None = None
    seed: int = 0
    steps: int = 20
    size: tuple[int, int] | None = None  # (width, height) in pixels
    guidance: float | None = None

    def arguments(self, pipe: Any) -> dict[str, Any]:
        """As `generate` takes it for this pipeline."""
        arguments: dict[str, Any] = {"prompt": self.prompt, "seed": self.seed, "num_inference_steps": self.steps}
        if self.size is not None:
            arguments["width"], arguments["height"] = self.size
        return arguments | guidance_arguments(pipe, self.guidance, self.negative)


def check_size(size: tuple[int, int], step: int) -> None:
    """Raise where a side is not a multiple of `step` pixels."""
    for side in size:
        if side % step:
            nearest = max(step, round(side / step) * step)
            raise UsageError(f"size has {side}, which is not a multiple of {step} pixels: use {nearest} instead.")


def check_request(loaded: LoadedPipeline, wanted: ImageRequest) -> None:
    """Raise before any work is done where the pipeline cannot generate what is asked for."""
    if wanted.size is not None:
        check_size(wanted.size, loaded.size_step)
    for text in (wanted.prompt, wanted.negative or ""):
        if len(text) > LONGEST_PROMPT:
            raise UsageError(f"a prompt has {len(text):,} characters: use at most {LONGEST_PROMPT:,}.")
    for name, value in (("negative_prompt", wanted.negative), ("guidance_scale", wanted.guidance)):
        if value is not None and not loaded.takes(name):
            raise UsageError(f"{loaded.name} takes no {name.replace('_', ' ')}: leave it out.")
    if wanted.negative and loaded.takes("true_cfg_scale"):
        _check_negative(loaded, wanted)


def _check_negative(loaded: LoadedPipeline, wanted: ImageRequest) -> None:
    """These pipelines pass over a negative prompt in silence unless they are guided by it."""
    if not guided_by_second_call(loaded.pipe):
        raise UsageError(f"{loaded.name} is guided without a negative prompt: leave it out.")
    own = inspect.signature(loaded.pipe.__call__).parameters["true_cfg_scale"].default
    own = getattr(loaded.pipe, "suggested_guidance", own)
    if (own if wanted.guidance is None else wanted.guidance) <= 1:
        raise UsageError(
            f"{loaded.name} reads a negative prompt only where guidance is above 1: give a guidance, such as 3."
        )


def guided_by_second_call(pipe: Any) -> bool:
    """Whether `true_cfg_scale` is this pipeline's guidance.

    Flux and Qwen-Image have two kinds. `guidance_scale` is for weights that take it as an input. Others, such as
    Flux schnell and photo-flux, ignore it, and are guided by a second call at each step.
    """
    if not takes(pipe, "true_cfg_scale"):
        return False
    return not getattr(pipe.transformer.config, "guidance_embeds", False)


def guidance_arguments(pipe: Any, guidance: float | None, negative: str | None = None) -> dict[str, Any]:
    """Guidance and a negative prompt as the pipeline's call takes them; None leaves one to the model."""
    guidance = getattr(pipe, "suggested_guidance", None) if guidance is None else guidance
    if guidance is not None and guided_by_second_call(pipe):
        return {"true_cfg_scale": guidance, "negative_prompt": negative or ""}
    given = {"guidance_scale": guidance, "negative_prompt": negative}
    return {name: value for name, value in given.items() if value is not None}


def generate(
    pipe: Any,
    prompt: str,
    seed: int,
    *,
    progress: str | None = None,
    on_step: Callable[[int], None] | None = None,
    **options: Any,
) -> tuple[Image, float]:
    """The image, and the seconds it took from prompt to pixels, with whatever is applied to the pipeline.

    progress: what the bar on stderr is called; None shows no bar.
    on_step: called after each step with how many are done. What it raises ends the generation.
    options: anything else that the pipeline's call takes.
    """
    if on_step is not None:
        options |= _step_callback(pipe, on_step)
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(desc=progress, disable=progress is None, leave=False)
    # On the CPU, so that a seed stands for the same noise wherever the model runs.
    noise = torch.Generator("cpu").manual_seed(seed)
    clock = Clock(torch.device(getattr(pipe, "device", "cpu")))
    made, seconds = clock.timed(lambda: pipe(prompt=prompt, generator=noise, **options))
    return made.images[0], seconds


def takes(pipe: Any, argument: str) -> bool:
    """Whether the pipeline's call takes this argument."""
    return argument in inspect.signature(pipe.__call__).parameters


def _step_callback(pipe: Any, on_step: Callable[[int], None]) -> dict[str, Any]:
    """The pipeline's argument that calls `on_step`; nothing if it takes neither kind."""

    def after_step(pipe: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        on_step(index + 1)
        return {}

    if takes(pipe, "callback_on_step_end"):
        return {"callback_on_step_end": after_step}
    if takes(pipe, "callback"):  # PixArt's pipelines have kept the older kind
        return {"callback": lambda index, timestep, latents: on_step(index + 1), "callback_steps": 1}
    return {}
