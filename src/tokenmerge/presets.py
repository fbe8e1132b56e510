"""Settings by what they are for, and by how a model's attention takes its keys: the one table of them.

Where the values come from: the embedded models at 512 px (docs/quality.md). In a UNet self-attention needs a quarter of
its keys, which is as good as not to be seen; what the MLP loses is seen first, and one whole step in six gives most of
it back. In transformers of a single level keys have more to say, and leaving them out saves less: most is kept where
tiles are smaller.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from tokenmerge.api import denoisers_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import ConfigError
from tokenmerge.methods.toma import ToMA
from tokenmerge.models import family_of

Name = Literal["quality", "balanced", "fast"]
NAMES: tuple[Name, ...] = ("quality", "balanced", "fast")

EVERYWHERE: dict[Name, MergeConfig] = {"balanced": ToMA(), "fast": ToMA(detail_every=8, detail_within=0.5)}
# Attention that takes keys and values of its own: UNets, PixArt, and families of yours that say so.
OWN_KEYS: dict[Name, MergeConfig] = {"quality": ToMA.keys(), **EVERYWHERE}
# Queries and keys are made of the same tokens, often with text among them: all others.
JOINT: dict[Name, MergeConfig] = {
    "quality": ToMA(ratio=0.75, tile=(2, 2), detail_every=3, detail_within=0.35),
    **EVERYWHERE,
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
    own_keys = any(
        part.own_keys
        for stack in family_of(denoiser).stacks(denoiser)
        for block in stack.blocks
        for part in block.parts
    )
    return (OWN_KEYS if own_keys else JOINT)[name]
