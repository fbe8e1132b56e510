"""One picture from a loaded pipeline: the same request gives the same noise on every device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tokenmerge.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from tokenmerge.pipelines import LoadedPipeline

LATENT = 8  # pixels to a latent in every Stable Diffusion and Flux model
LARGEST_SIDE = 8192  # pixels
MOST_STEPS = 1000  # the schedulers are trained on so many
# The CPU's generator reads 32 bits of a seed: 2**32 would give the noise of 0, in silence.
LARGEST_SEED = 2**32 - 1
LONGEST_PROMPT = 20_000  # characters; tokenizers read some hundred


@dataclass(frozen=True)
class Picture:
    """What to draw. None leaves a value to the model."""

    prompt: str
    negative: str | None = None
    seed: int = 0
    steps: int = 20
    size: tuple[int, int] | None = None  # (width, height) in pixels
    guidance: float | None = None


def check_size(size: tuple[int, int], step: int) -> None:
    """Raise where a side is not a multiple of `step` pixels."""
    for side in size:
        if side % step:
            nearest = max(step, round(side / step) * step)
            raise UsageError(f"size has {side}, which is not a multiple of {step} pixels: use {nearest} instead.")


def check_picture(loaded: LoadedPipeline, picture: Picture) -> None:
    """Raise before any work is done where the pipeline cannot draw what is asked for."""
    if picture.size is not None:
        check_size(picture.size, loaded.size_step)
    for text in (picture.prompt, picture.negative or ""):
        if len(text) > LONGEST_PROMPT:
            raise UsageError(f"a prompt has {len(text):,} characters: use at most {LONGEST_PROMPT:,}.")
    for name, value in (("negative_prompt", picture.negative), ("guidance_scale", picture.guidance)):
        if value is not None and not loaded.takes(name):
            raise UsageError(f"{loaded.name} takes no {name.replace('_', ' ')}: leave it out.")


def draw(
    loaded: LoadedPipeline,
    picture: Picture,
    progress: str | None = None,
    on_step: Callable[[int], None] | None = None,
) -> tuple[Image, float]:
    """The image, and the seconds it took from prompt to pixels.

    progress: what the bar on stderr is called; None shows no bar.
    on_step: called after each step with how many are done. What it raises ends the drawing.
    """
    arguments: dict[str, Any] = {
        "prompt": picture.prompt,
        "num_inference_steps": picture.steps,
        # On the CPU, so that a seed stands for the same noise wherever the model runs.
        "generator": torch.Generator("cpu").manual_seed(picture.seed),
    }
    if picture.size is not None:
        arguments["width"], arguments["height"] = picture.size
    if picture.negative is not None:
        arguments["negative_prompt"] = picture.negative
    if picture.guidance is not None:
        arguments["guidance_scale"] = picture.guidance
    if on_step is not None:
        arguments |= _step_callback(loaded, on_step)
    loaded.pipe.set_progress_bar_config(desc=progress, disable=progress is None, leave=False)
    started = time.perf_counter()
    # Pixels arrive on the CPU, so the clock stops when the device has really finished.
    image: Image = loaded.pipe(**arguments).images[0]
    return image, time.perf_counter() - started


def _step_callback(loaded: LoadedPipeline, on_step: Callable[[int], None]) -> dict[str, Any]:
    """The pipeline's argument that has `on_step` called; none where it takes neither kind."""

    def after_step(pipe: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        on_step(index + 1)
        return {}

    if loaded.takes("callback_on_step_end"):
        return {"callback_on_step_end": after_step}
    if loaded.takes("callback"):  # PixArt's pipelines have kept the older kind
        return {"callback": lambda index, timestep, latents: on_step(index + 1), "callback_steps": 1}
    return {}
