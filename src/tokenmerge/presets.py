"""Settings by what they are for and by the kind of model: the one table of them.

The values come from the embedded models at 512 px (docs/quality.md). In a UNet self-attention needs a quarter of its
keys. In transformers of a single level keys matter more and leaving them out saves less, so most is kept with smaller
tiles there.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from tokenmerge.api import denoisers_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.errors import ConfigError
from tokenmerge.methods.sampled_keys import SampledKeys
from tokenmerge.methods.tile_mean import TileMean
from tokenmerge.models import family_of

Name = Literal["quality", "balanced", "fast"]
NAMES: tuple[Name, ...] = ("quality", "balanced", "fast")

EVERYWHERE: dict[Name, MergeConfig] = {
    "balanced": TileMean(),
    "fast": TileMean(correction=FullSteps(every=8, within=0.5)),
}
# Models of several levels, whose coarser ones see the whole image anyway: UNets, and registered families of that kind.
LEVELS: dict[Name, MergeConfig] = {"quality": SampledKeys(), **EVERYWHERE}
# Transformers of a single level.
ONE_LEVEL: dict[Name, MergeConfig] = {"quality": TileMean(tile=2, correction=FullSteps(every=3)), **EVERYWHERE}

# Videos: with nearly as many tokens, tiles four frames deep kept up to 3 dB more of a toy video than flat ones, unless
# it moves by two tokens from one latent frame to the next (docs/quality.md).
DEEP = (4, 2, 2)
VIDEO: dict[Name, MergeConfig] = {
    **ONE_LEVEL,
    "balanced": TileMean(tile=DEEP),
    "fast": TileMean(tile=DEEP, correction=FullSteps(every=8, within=0.5)),
}


def preset(name: Name, model: Any) -> MergeConfig:
    """A config for a pipeline, or a bare UNet or transformer.

    name: "quality" stays closest to the unmerged image, "fast" saves most, "balanced" lies between.

    >>> config = preset("quality", pipe)  # doctest: +SKIP
    >>> handle = apply(pipe, "quality")  # the same  # doctest: +SKIP
    """
    if name not in NAMES:
        raise ConfigError(f"preset {name!r} is not known: use one of {', '.join(map(repr, NAMES))}.")
    denoiser: nn.Module = denoisers_of(model)[0]
    family = family_of(denoiser)
    if family.video:
        return VIDEO[name]
    stacks = family.stacks(denoiser)
    parts = [part for stack in stacks for block in stack.blocks for part in block.parts]
    levels = any(stack.downsample > 1 for stack in stacks) and any(part.can_separate_keys for part in parts)
    return (LEVELS if levels else ONE_LEVEL)[name]
