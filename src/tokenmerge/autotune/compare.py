"""compare(): how close a config stays to the unmerged model, and how much faster it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmerge.api import Config, merged
from tokenmerge.autotune.generator import Generate, generator_of, pairs_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.runtime.fidelity import psnr_of


@dataclass(frozen=True)
class Comparison:
    """A config against the unmerged model, on every prompt and seed."""

    config: MergeConfig
    work: float  # predicted multiply-adds, as a share of the unmerged model's
    psnr: list[float]  # decibels to the unmerged output, one for each
    seconds: list[float]
    unmerged_seconds: list[float]

    @property
    def mean_psnr(self) -> float:
        return statistics.mean(self.psnr)

    @property
    def speedup(self) -> float:
        return statistics.median(self.unmerged_seconds) / statistics.median(self.seconds)

    def __str__(self) -> str:
        return (
            f"{self.speedup:.2f}x measured, {self.work:.0%} of the multiply-adds, {self.mean_psnr:.1f} dB on average, "
            f"{min(self.psnr):.1f} dB at worst: {self.config!r}"
        )


def compare(
    pipe: Any,
    config: Config = "balanced",
    prompts: Sequence[Any] = (None,),
    *,
    seeds: Sequence[int] = (0,),
    generate: Generate | None = None,
    **options: Any,
) -> Comparison:
    """Generate with and without merging, from the same seeds.

    Args:
        pipe: a pipeline; with `generate` also a bare model, of any family that is registered.
        config: a preset by name, or a method with its options.
        prompts: what to generate: texts, or whatever `generate` takes.
        seeds: the seeds for each prompt.
        generate: a function (prompt, seed, **options) that generates with the model and returns an image, an array or
            a tensor. It must give the same output for the same seed. By default the pipeline itself.
        options: anything that the pipeline's call, or `generate`, takes.

    >>> print(compare(model, "quality", generate=lambda label, seed: sample(model, seed)))  # doctest: +SKIP
    """
    pairs = pairs_of(prompts, seeds)
    generator = generator_of(pipe, generate, options)
    with generator.quiet():
        generator.warm_up(*pairs[0])
        unmerged = [generator.timed(*pair) for pair in pairs]
        with merged(pipe, config, steps=generator.steps) as handle:
            work = generator.work(handle)
            made = []
            for pair in pairs:
                handle.reset()
                made.append(generator.timed(*pair))
            used = handle.config
    psnr = [psnr_of(one, other) for (one, _), (other, _) in zip(unmerged, made, strict=True)]
    return Comparison(used, work, psnr, [seconds for _, seconds in made], [seconds for _, seconds in unmerged])
