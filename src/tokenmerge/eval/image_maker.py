"""One image: made, timed and encoded with all that is needed to make it again."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from tokenmerge.accelerations.base import Acceleration, Generation, refuse_misfit
from tokenmerge.api import denoisers_of
from tokenmerge.errors import TokenMergeError
from tokenmerge.eval.experiment import Experiment
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.prompts import cut_prompt, prompt_fits
from tokenmerge.eval.variants import Variant
from tokenmerge.runtime.files import encoded
from tokenmerge.runtime.generation import ImageRequest, generate
from tokenmerge.runtime.machine import library_versions
from tokenmerge.runtime.multiply_adds import executed_in

# For what an acceleration has to measure on the model: the same on every machine, whichever pair comes first.
CALIBRATION = Pair("calibration", "red heart", 0)


@dataclass(frozen=True)
class MadeImage:
    png: bytes
    seconds: float
    multiply_adds: int  # executed in all calls of the denoiser
    worker: str
    versions: dict[str, str]


class ImageMaker:
    """Holds a model and makes any variant's image of any pair; no image depends on those made before it."""

    def __init__(self, experiment: Experiment, pipeline: Any) -> None:
        self.experiment = experiment
        self.pipeline = pipeline
        self.device = torch.device(getattr(pipeline, "device", "cpu"))
        self._warm: set[str] = set()
        self._prepared: dict[str, Acceleration] = {}
        self._multiply_adds: dict[str, int] = {}
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
            steps = self._steps(variant)
            with self._applied(variant):
                self._warm_up(variant, pair, steps)
            multiply_adds = self._executed(variant, pair, steps)
            # Applied afresh, so that nothing of earlier generations is left.
            with self._applied(variant):
                image, seconds = self.generate(pair, steps)
        except TokenMergeError as error:
            raise type(error)(f"variant {variant.label}: {error}") from error
        png = self._encoded(image, variant, pair)
        return MadeImage(png, seconds, multiply_adds, self._worker(), library_versions())

    def generate(self, pair: Pair, steps: int) -> tuple[Image.Image, float]:
        """An image of a pair with whatever is applied to the pipeline, and its seconds; it is not kept."""
        return generate(self.pipeline, **self._arguments(pair, steps))

    def calls_per_step(self) -> int:
        """Calls of the denoiser at each step: two if guidance is a second call."""
        return 2 if self._arguments(CALIBRATION, 1).get("true_cfg_scale", 1) > 1 else 1

    def _arguments(self, pair: Pair, steps: int) -> dict[str, Any]:
        choice = self.experiment.image
        size = choice.width, choice.height
        wanted = ImageRequest(pair.prompt, seed=pair.seed, steps=steps, size=size, guidance=choice.guidance)
        return wanted.arguments(self.pipeline)

    def _steps(self, variant: Variant) -> int:
        steps = self.experiment.image.steps
        return steps if variant.acceleration is None else variant.acceleration.steps_of(steps)

    def _applied(self, variant: Variant) -> AbstractContextManager[Any]:
        if variant.acceleration is None:
            return nullcontext()
        steps = self._steps(variant)
        generation = Generation(steps, self.calls_per_step())
        if variant.key not in self._prepared:
            refuse_misfit(variant.name, variant.acceleration, self.pipeline)
            self._prepared[variant.key] = variant.acceleration.prepared(
                self.pipeline, generation, lambda steps: self.generate(CALIBRATION, steps)
            )
        return self._prepared[variant.key].applied(self.pipeline, generation)

    def _executed(self, variant: Variant, pair: Pair, steps: int) -> int:
        """Multiply-adds of the denoiser's calls, counted in a generation that is not timed.

        Counted once, except if they depend on the image.
        """
        adapts = variant.acceleration is not None and variant.acceleration.adapts
        if adapts or variant.key not in self._multiply_adds:
            with self._applied(variant), executed_in(denoisers_of(self.pipeline)) as counted:
                self.generate(pair, steps)
            self._multiply_adds[variant.key] = counted.total
        return self._multiply_adds[variant.key]

    def _warm_up(self, variant: Variant, pair: Pair, steps: int) -> None:
        """The first calls of a variant in a process find cold caches and compile kernels: they are not timed."""
        if variant.key in self._warm:
            return
        timing = self.experiment.timing
        for _ in range(timing.warmup):
            self.generate(pair, min(timing.warmup_steps, steps))
        self._warm.add(variant.key)

    def _encoded(self, image: Image.Image, variant: Variant, pair: Pair) -> bytes:
        choice = self.experiment.image
        made_from = {
            "prompt": pair.prompt,
            "seed": pair.seed,
            "variant": variant.name,
            "ratio": variant.ratio,
            "setting": variant.setting,
            "config": variant.config_dict(),
            "model": self.experiment.model.name,
            "dtype": self.experiment.model.dtype,
            "width": choice.width,
            "height": choice.height,
            "steps": self._steps(variant),
            "guidance": choice.guidance,
        }
        return encoded(image, about=made_from)

    def _worker(self) -> str:
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        return f"{platform.node()} {device}, {torch.get_num_threads()} threads"
