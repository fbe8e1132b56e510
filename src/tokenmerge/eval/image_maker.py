"""One image: made, timed and encoded with all that is needed to make it again."""

from __future__ import annotations

import platform
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from tokenmerge.api import merged
from tokenmerge.errors import TokenMergeError
from tokenmerge.eval.experiment import Experiment
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.prompts import cut_prompt, prompt_fits
from tokenmerge.eval.variants import Variant
from tokenmerge.runtime.files import encoded
from tokenmerge.runtime.generation import ImageRequest, generate
from tokenmerge.runtime.machine import library_versions


@dataclass(frozen=True)
class MadeImage:
    png: bytes
    seconds: float
    worker: str
    versions: dict[str, str]


class ImageMaker:
    """Holds a model and makes any variant's image of any pair; no image depends on those made before it."""

    def __init__(self, experiment: Experiment, pipeline: Any) -> None:
        self.experiment = experiment
        self.pipeline = pipeline
        self.device = torch.device(getattr(pipeline, "device", "cpu"))
        self._warm: set[str] = set()
        if experiment.model.threads:
            # Sums depend on how they are split: the same threads, the same bits.
            torch.set_num_threads(experiment.model.threads)
        torch.backends.cudnn.deterministic = True
        if getattr(pipeline, "safety_checker", None) is not None:
            pipeline.safety_checker = None  # a blackened image cannot be compared with anything

    def cut(self, prompts: list[str]) -> list[str]:
        fits = prompt_fits(self.pipeline)
        return [cut_prompt(prompt, fits) for prompt in prompts]

    def make(self, variant: Variant, pair: Pair) -> MadeImage:
        try:
            with merged(self.pipeline, variant.config) if variant.config else nullcontext():
                self._warm_up(variant, pair)
            # Applied afresh, so that nothing of the warm-up's plan is left.
            with merged(self.pipeline, variant.config) if variant.config else nullcontext():
                image, seconds = self.generate(pair, self.experiment.image.steps)
        except TokenMergeError as error:
            raise type(error)(f"variant {variant.label}: {error}") from error
        return MadeImage(self._encoded(image, variant, pair), seconds, self._worker(), library_versions())

    def generate(self, pair: Pair, steps: int) -> tuple[Image.Image, float]:
        """An image of a pair with whatever is applied to the pipeline, and its seconds; it is not kept."""
        choice = self.experiment.image
        size = choice.width, choice.height
        wanted = ImageRequest(pair.prompt, seed=pair.seed, steps=steps, size=size, guidance=choice.guidance)
        return generate(self.pipeline, **wanted.arguments(self.pipeline))

    def _warm_up(self, variant: Variant, pair: Pair) -> None:
        """The first calls of a variant in a process find cold caches and compile kernels: they are not timed."""
        if variant.key in self._warm:
            return
        timing = self.experiment.timing
        for _ in range(timing.warmup):
            self.generate(pair, min(timing.warmup_steps, self.experiment.image.steps))
        self._warm.add(variant.key)

    def _encoded(self, image: Image.Image, variant: Variant, pair: Pair) -> bytes:
        choice = self.experiment.image
        made_from = {
            "prompt": pair.prompt,
            "seed": pair.seed,
            "variant": variant.name,
            "ratio": variant.ratio,
            "config": variant.config_dict(),
            "model": self.experiment.model.name,
            "dtype": self.experiment.model.dtype,
            "width": choice.width,
            "height": choice.height,
            "steps": choice.steps,
            "guidance": choice.guidance,
        }
        return encoded(image, about=made_from)

    def _worker(self) -> str:
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        return f"{platform.node()} {device}, {torch.get_num_threads()} threads"
