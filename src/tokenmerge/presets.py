"""Settings by what they are for, and by how a model's attention takes its keys: the one table of them.

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
# Attention that takes keys and values as an argument: UNets, PixArt, and registered families that say so.
OWN_KEYS: dict[Name, MergeConfig] = {"quality": SampledKeys(), **EVERYWHERE}
# Queries and keys are computed from the same tokens, often with text among them: all others.
JOINT: dict[Name, MergeConfig] = {"quality": TileMean(tile=2, correction=FullSteps(every=3)), **EVERYWHERE}


def preset(name: Name, model: Any) -> MergeConfig:
    """A config for a pipeline, or a bare UNet or transformer.

    name: "quality" stays closest to the unmerged image, "fast" saves most, "balanced" lies between.

    >>> config = preset("quality", pipe)  # doctest: +SKIP
    >>> handle = apply(pipe, "quality")  # the same  # doctest: +SKIP
    """
    if name not in NAMES:
        raise ConfigError(f"preset {name!r} is not known: use one of {', '.join(map(repr, NAMES))}.")
    denoiser: nn.Module = denoisers_of(model)[0]
    own_keys = any(
        part.own_keys
        for stack in family_of(denoiser).stacks(denoiser)
        for block in stack.blocks
        for part in block.parts
    )
    return (OWN_KEYS if own_keys else JOINT)[name]
