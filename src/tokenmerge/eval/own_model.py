"""evaluate_model(): the tables of `tokenmerge eval` for a model of your own and a function that generates with it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tokenmerge.accelerations.base import Acceleration
from tokenmerge.accelerations.merging import Merging
from tokenmerge.accelerations.named import PRESET, named_acceleration
from tokenmerge.api import Config, denoisers_of
from tokenmerge.autotune.generator import FunctionGenerator, Generate
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_whole
from tokenmerge.errors import ConfigError
from tokenmerge.eval.engine import LocalEngine
from tokenmerge.eval.experiment import (
    FEWER_STEPS,
    METRICS,
    Experiment,
    ImageChoice,
    MetricChoice,
    ModelChoice,
    PromptChoice,
    SeedChoice,
    VariantChoice,
)
from tokenmerge.eval.image_maker import ImageMaker
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.results import Results
from tokenmerge.eval.run import evaluate
from tokenmerge.eval.variants import BASELINE, Variant, fewer_steps_of, refuse_twins, variant_of
from tokenmerge.presets import NAMES

WARM_UP_STEPS = 2


def evaluate_model(
    model: Any,
    generate: Generate,
    variants: Sequence[Config | Acceleration] = NAMES,
    *,
    steps: int,
    prompts: Sequence[Any] = (None,),
    seeds: Sequence[int] = (0,),
    fewer_steps: Sequence[float] = FEWER_STEPS,
    metrics: Sequence[str] = ("psnr", "ssim", "lpips"),
    out: str | Path | None = None,
) -> Results:
    """Quality, time and multiply-adds of several configs and of fewer steps, against the unmerged model.

    Print what it returns for the tables; `variants` of it holds the numbers.

    Args:
        model: a model of any family that is registered.
        generate: a function (prompt, seed, steps) that generates with the model. It returns an image, or an array or a
            tensor with values from 0 to 1. It must give the same image for the same seed.
        variants: presets by name, methods with their options, or accelerations. By default all presets.
        steps: denoising steps of an image.
        prompts: what to generate: texts, labels, or whatever `generate` takes. More make intervals narrower.
        seeds: the seeds for each prompt.
        fewer_steps: shares of the steps to compare with. () leaves them out.
        metrics: some of "mse", "psnr", "ssim", "lpips", "fid", "dino". One that lacks its weights is left out, and the
            table says why.
        out: a new folder for images, tables, plots and a page. By default nothing is kept.

    >>> print(evaluate_model(model, sample, ["quality", ToMA(ratio=0.5)], steps=20))  # doctest: +SKIP
    """
    check_whole("steps", steps, least=1)
    texts = _texts_of(prompts)
    chosen = [variant_of(acceleration_of(each)) for each in variants]
    if not chosen or not seeds:
        raise ConfigError("there is no variant, or no seed: give at least one of each.")
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"metrics has {name!r}: use some of {', '.join(map(repr, METRICS))}.")
    probe = FunctionGenerator(model, generate, {"steps": min(WARM_UP_STEPS, steps)})
    width, height = as_image(probe.warm_up(next(iter(texts.values())), seeds[0])).size
    experiment = _experiment(model, chosen, ImageChoice(width, height, steps), seeds, fewer_steps, metrics)
    found = [BASELINE, *fewer_steps_of(experiment), *chosen]
    refuse_twins(found)

    def maker_of(settled: Experiment) -> ImageMaker:
        return FunctionMaker(settled, model, generate, texts, probe.calls_per_step)

    with _folder(out) as folder:
        inputs = found, list(texts)
        return evaluate(experiment, Path(folder), lambda each: LocalEngine(each, maker_of), _warn, inputs=inputs)


class FunctionMaker(ImageMaker):
    """Generates with a function instead of a pipeline's call."""

    def __init__(
        self, experiment: Experiment, model: Any, function: Generate, prompts: Mapping[str, Any], calls_per_step: int
    ) -> None:
        super().__init__(experiment, model)
        self.device = next(denoisers_of(model)[0].parameters()).device
        self._function, self._prompts, self._calls_per_step = function, prompts, calls_per_step

    def cut(self, prompts: list[str]) -> list[str]:
        return prompts

    def calls_per_step(self) -> int:
        return self._calls_per_step

    def generate(self, pair: Pair, steps: int) -> tuple[Image.Image, float]:
        # A cache calibrates on its own pair, whose text this function cannot take.
        prompt = self._prompts.get(pair.prompt, next(iter(self._prompts.values())))
        made, seconds = FunctionGenerator(self.pipeline, self._function, {"steps": steps}).timed(prompt, pair.seed)
        return as_image(made), seconds


def acceleration_of(variant: Config | Acceleration) -> Acceleration:
    if isinstance(variant, Acceleration):
        return variant
    if isinstance(variant, str):
        return named_acceleration(PRESET, {"preset": variant})
    config = getattr(variant, "config", variant)  # of what `worthwhile` found
    if not isinstance(config, MergeConfig):
        raise ConfigError(
            f"variants has {variant!r}: give names of presets, such as 'quality', or methods with their options, such "
            f"as tokenmerge.ToMA(ratio=0.5)."
        )
    return Merging(config)


def as_image(made: Any) -> Image.Image:
    """What a function has generated as an 8-bit image: an image, or (3, H, W), (1, 3, H, W) or (H, W, 3) values."""
    if isinstance(made, Image.Image):
        return made.convert("RGB")
    values = torch.as_tensor(made).detach().cpu()
    shape = tuple(values.shape)
    values = values[0] if values.dim() == 4 and len(values) == 1 else values
    if values.dim() == 3 and values.shape[0] in (1, 3):
        values = values.permute(1, 2, 0)
    if values.dim() != 3 or values.shape[-1] not in (1, 3):
        raise ConfigError(
            f"generate returned values of shape {shape}: metrics need one image of 1 or 3 channels, such as "
            f"(3, height, width). Decode latents first, or use tokenmerge.compare, which takes any tensor."
        )
    if values.dtype != torch.uint8:
        values = values.float()
        if not (values.min() >= 0 and values.max() <= 1):  # so that NaN is refused too
            raise ConfigError(
                f"generate returned values from {values.min():.2f} to {values.max():.2f}: metrics need 0 to 1. For an "
                f"image from -1 to 1 return (image / 2 + 0.5).clamp(0, 1)."
            )
        values = (255 * values).round().to(torch.uint8)
    return Image.fromarray(values.expand(-1, -1, 3).numpy().copy())


def _texts_of(prompts: Sequence[Any]) -> dict[str, Any]:
    """Prompts by the text that stands for them in tables and files."""
    if isinstance(prompts, str):
        prompts = [prompts]
    texts = {prompt if isinstance(prompt, str) else repr(prompt): prompt for prompt in prompts}
    if not texts:
        raise ConfigError("there is no prompt: give at least one, such as None for a model without prompts.")
    if len(texts) < len(prompts):
        raise ConfigError("two prompts are the same: give each once, and more seeds for more images of it.")
    return texts


def _experiment(
    model: Any,
    chosen: Sequence[Variant],
    image: ImageChoice,
    seeds: Sequence[int],
    fewer_steps: Sequence[float],
    metrics: Sequence[str],
) -> Experiment:
    """What `tokenmerge eval` would read from a file."""
    name = type(denoisers_of(model)[0]).__name__
    return Experiment(
        name=name,
        description="Generated by a function, with a model that was given in Python.",
        prompts=PromptChoice(""),
        variants=tuple(VariantChoice(each.label, each.name, options=each.config_dict() or {}) for each in chosen),
        reference=chosen[0].name,
        fewer_steps=tuple(fewer_steps),
        model=ModelChoice(name),
        seeds=SeedChoice(tuple(seeds)),
        image=image,
        metrics=MetricChoice(tuple(metrics)),
    )


def _folder(out: str | Path | None) -> AbstractContextManager[str | Path]:
    if out is None:
        return tempfile.TemporaryDirectory(prefix="tokenmerge-")
    if Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        # Images of a function cannot be distinguished from those of an earlier version of it.
        raise ConfigError(f"out is {str(out)!r}, which exists: give a new or empty folder.")
    return nullcontext(out)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)
