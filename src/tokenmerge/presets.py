"""Settings by what they are for and by the kind of model: the one table of them.

At the same speed skipped steps stay closer to the image than fewer steps, caches or merged tokens (docs/quality.md). In
models of several levels self-attention needs a quarter of its keys, so keys are sampled too. In those of one level it
needs more: with one to five steps, of which none is skipped, sampled keys were far behind fewer steps.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from tokenmerge.api import denoisers_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.errors import ConfigError, hint
from tokenmerge.methods.sampled_keys import SampledKeys
from tokenmerge.methods.skip_steps import SkipSteps
from tokenmerge.methods.tile_mean import TileMean
from tokenmerge.models import family_of

Name = Literal["quality", "balanced", "fast"]
NAMES: tuple[Name, ...] = ("quality", "balanced", "fast")

# One denoising step in this many is computed.
STEP_SPEEDUPS: dict[Name, float] = {"quality": 1.5, "balanced": 2.0, "fast": 3.0}
# Kept whatever the model: in some, every token attends to a few that are unlike all others. With 8 of them a trained
# UNet in four steps was behind plain ToMA, with 64 ahead of it (docs/quality.md). Of a large grid they are few.
OUTLIERS = 64

# With a `keep` mask or a `reference_ratio`, which say what tokens are merged: methods that merge them at most steps.
MERGING: dict[Name, MergeConfig] = {
    "quality": TileMean(tile=2, correction=FullSteps(every=3)),
    "balanced": TileMean(),
    "fast": TileMean(correction=FullSteps(every=8, within=0.5)),
}
# Videos: with nearly as many tokens, tiles four frames deep kept up to 3 dB more of a toy video than flat ones, unless
# it moves by two tokens from one latent frame to the next (docs/quality.md).
DEEP = (4, 2, 2)
MERGING_VIDEO: dict[Name, MergeConfig] = {
    "quality": MERGING["quality"],
    "balanced": TileMean(tile=DEEP),
    "fast": TileMean(tile=DEEP, correction=FullSteps(every=8, within=0.5)),
}


def preset(name: Name, model: Any, merge_tokens: bool = False) -> MergeConfig:
    """A config for a pipeline, or a bare UNet or transformer.

    name: "quality" stays closest to the unmerged image, "fast" saves most, "balanced" lies between.
    merge_tokens: whether it must merge tokens, because a mask or a ratio says which ones. It then skips no step.

    >>> config = preset("quality", pipe)  # doctest: +SKIP
    >>> handle = apply(pipe, "quality")  # the same  # doctest: +SKIP
    """
    if name not in NAMES:
        otherwise = f"use one of {', '.join(map(repr, NAMES))}, or give a method, such as tokenmerge.ToMA(ratio=0.5)."
        raise ConfigError(f"preset {name!r} is not known: {hint(name, NAMES, otherwise)}")
    denoiser: nn.Module = denoisers_of(model)[0]
    family = family_of(denoiser)
    if merge_tokens:
        return (MERGING_VIDEO if family.video else MERGING)[name]
    stacks = family.stacks(denoiser)
    parts = [part for stack in stacks for block in stack.blocks for part in block.parts]
    separable = any(part.can_separate_keys for part in parts)
    if separable and any(stack.downsample > 1 for stack in stacks):
        return SampledKeys(outliers=OUTLIERS, step_speedup=STEP_SPEEDUPS[name])
    return SkipSteps(step_speedup=STEP_SPEEDUPS[name])
