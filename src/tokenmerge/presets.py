"""Settings by what they are for, per model family: the one table of them.

Where the values come from: the embedded models at 512 px (docs/quality.md). In a UNet self-attention needs a quarter of
its keys, which is as good as not to be seen; what the MLP loses is seen first, and one whole step in four gives much of
it back. Models whose attention takes text and image in one sequence cannot merge keys apart: there most is kept where
little is merged in the first fifth of the noise, in which shapes are decided, and every third step runs whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from tokenmerge.api import denoisers_of
from tokenmerge.config import MergeConfig
from tokenmerge.errors import ConfigError
from tokenmerge.methods.toma import ToMA
from tokenmerge.models import family_of

Name = Literal["quality", "balanced", "fast"]
NAMES: tuple[Name, ...] = ("quality", "balanced", "fast")

# Attention that takes keys and values apart from queries.
OWN_KEYS = {"quality": ToMA.keys(), "balanced": ToMA(), "fast": ToMA(kv_ratio=0.9375, detail_every=5)}
# Text and image in one sequence, or no mask over keys and values of their own.
JOINT = {
    "quality": ToMA(ratio=(0.25, 0.75, 0.75, 0.75, 0.75), detail_every=3),
    "balanced": ToMA(),
    "fast": ToMA(detail_every=5),
}

PRESETS: dict[str, Mapping[str, MergeConfig]] = {
    "UNet2DConditionModel": OWN_KEYS,
    "PixArtTransformer2DModel": OWN_KEYS,
    "SD3Transformer2DModel": JOINT,
    "FluxTransformer2DModel": JOINT,
    "Flux2Transformer2DModel": JOINT,
    "QwenImageTransformer2DModel": JOINT,
    "AuraFlowTransformer2DModel": JOINT,
    "WanTransformer3DModel": JOINT,
    "LTXVideoTransformer3DModel": JOINT,
    "HunyuanVideoTransformer3DModel": JOINT,
    "SanaTransformer2DModel": JOINT,
}


def preset(name: Name, model: Any) -> MergeConfig:
    """A config for a pipeline, or a bare UNet or transformer.

    name: "quality" stays closest to the unmerged image, "fast" saves most, "balanced" lies between.

    >>> handle = apply(pipe, preset("quality", pipe))  # doctest: +SKIP
    """
    if name not in NAMES:
        raise ConfigError(f"preset {name!r} is not known: use one of {', '.join(map(repr, NAMES))}.")
    denoiser: nn.Module = denoisers_of(model)[0]
    return PRESETS.get(family_of(denoiser).class_name, JOINT)[name]
