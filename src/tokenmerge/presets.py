"""Settings by what they are for, per model family: the one table of them.

Where the values come from: prototype measurements on two small pretrained models (a U-Net and a DiT), in which small
tiles and proportional attention came closest to the unmerged image, merging queries alone came closer still on a U-Net,
and merging once per stack cost no quality against once per block. They are to be replaced by what `tokenmerge eval`
finds on trained models of each family; "balanced" is `ToMA()` in every family until then.
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

# Attention that takes keys and values apart from queries: these stay whole for quality.
QUERIES_ALONE = {"quality": ToMA(ratio=0.5, kv_ratio=0), "balanced": ToMA(), "fast": ToMA(ratio=0.6, scope="stack")}
# Text and image in one sequence, or no mask over keys and values of their own.
JOINT = {"quality": ToMA(ratio=0.25), "balanced": ToMA(), "fast": ToMA(ratio=0.6, scope="stack")}
# Whole blocks cannot be merged.
PARTS_ALONE = {"quality": ToMA(ratio=0.25), "balanced": ToMA(), "fast": ToMA(ratio=0.75)}

PRESETS: dict[str, Mapping[str, MergeConfig]] = {
    "UNet2DConditionModel": QUERIES_ALONE,
    "PixArtTransformer2DModel": QUERIES_ALONE,
    "SD3Transformer2DModel": JOINT,
    "FluxTransformer2DModel": JOINT,
    "Flux2Transformer2DModel": JOINT,
    "QwenImageTransformer2DModel": JOINT,
    "AuraFlowTransformer2DModel": JOINT,
    "WanTransformer3DModel": JOINT,
    "LTXVideoTransformer3DModel": JOINT,
    "HunyuanVideoTransformer3DModel": JOINT,
    "SanaTransformer2DModel": PARTS_ALONE,
}


def preset(name: Name, model: Any) -> MergeConfig:
    """A config for a pipeline, or a bare UNet or transformer.

    name: "quality" stays closest to the unmerged image, "fast" saves most, "balanced" lies between.

    >>> handle = apply(pipe, preset("quality", pipe))  # doctest: +SKIP
    """
    if name not in NAMES:
        raise ConfigError(f"preset {name!r} is not known: use one of {', '.join(map(repr, NAMES))}.")
    denoiser: nn.Module = denoisers_of(model)[0]
    return PRESETS.get(family_of(denoiser).class_name, PARTS_ALONE)[name]
