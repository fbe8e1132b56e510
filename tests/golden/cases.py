"""What the golden record holds: every label with the builder behind it.

A label is a name for ever: record.json is read by it. A builder is today's way to ask for what the label means, and is
edited when the API changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from tiny_models import TINY_MODELS, TinyModel
from torch import Tensor

import tokenmerge as tm

# Small enough for the tiny models, and merging from the first block on.
SMALL: dict[str, Any] = {"min_tokens": 16, "skip_blocks": 0}


def small(config: tm.MergeConfig, **options: Any) -> tm.MergeConfig:
    """The config with other options, on the grids and blocks of tiny models."""
    return replace(config, **SMALL, **options)


CONFIGS: dict[str, Callable[[], tm.MergeConfig]] = {
    "paper": lambda: small(tm.ToMA.paper(0.5)),
    "paper-tile": lambda: small(tm.ToMA.paper_tile(0.5)),
    "paper-stripe": lambda: small(tm.ToMA.paper_stripe(0.5)),
    "paper-block": lambda: small(tm.ToMA.paper_block(0.5)),
    "released": lambda: small(tm.ToMA.released(0.5)),
    "paper-pinv": lambda: small(tm.ToMA.paper_pinv(0.5)),
    "toma-site": lambda: small(tm.ToMA()),
    "toma-block": lambda: small(tm.ToMA(scope="block")),
    "toma-stack": lambda: small(tm.ToMA(scope="stack")),
    "toma-stack-75": lambda: small(tm.ToMA(ratio=0.75, scope="stack")),
    "toma-list": lambda: small(tm.ToMA(ratio=[0.3, 0.6])),
    "toma-queries": lambda: small(tm.ToMA(ratio=0.75, keys="all")),
    "toma-sampled": lambda: small(tm.ToMA(ratio=0.75, keys="sampled")),
    "toma-corrected": lambda: small(tm.ToMA(correction=tm.FullSteps(every=3))),
    "toma-random": lambda: small(tm.ToMA(selector="random")),
    "toma-mask": lambda: small(tm.ToMA()),  # applied with a mask: see MASKS
    "balanced": lambda: small(tm.TileMean()),
    "balanced-site": lambda: small(tm.TileMean(scope="site")),
    "balanced-block": lambda: small(tm.TileMean(scope="block")),
    "balanced-mask": lambda: small(tm.TileMean()),  # applied with a mask: see MASKS
    "balanced-all-keys": lambda: small(tm.TileMean(keys="all")),
    "quality-joint": lambda: small(tm.TileMean(tile=2, correction=tm.FullSteps(every=3))),
    "fast": lambda: small(tm.TileMean(correction=tm.FullSteps(every=8, within=0.5))),
    "keys": lambda: small(tm.SampledKeys()),
    "tomesd": lambda: tm.ToMeSD(ratio=0.5, **SMALL),
    "tomesd-stack": lambda: tm.ToMeSD(ratio=0.5, scope="stack", parts=("self", "cross", "mlp"), **SMALL),
    "tofu": lambda: tm.ToFu(ratio=0.5, **SMALL),
    "todo": lambda: tm.ToDo(ratio=0.75, coarser_ratios=(0.75, 0.75), **SMALL),
    "lower-bound": lambda: tm.LowerBound(ratio=0.5, tile=(2, 2), scope="block", **SMALL),
}


def half_white() -> Tensor:
    """(16, 16): the left half is kept as it is."""
    mask = torch.zeros(16, 16)
    mask[:, :8] = 1
    return mask


MASKS: dict[str, Callable[[], Tensor]] = {"toma-mask": half_white, "balanced-mask": half_white}


@dataclass(frozen=True)
class GoldenModel:
    """A tiny model and the grid of tokens it is called on."""

    tiny: TinyModel
    height: int
    width: int

    @property
    def grid(self) -> tuple[int, ...]:
        return self.tiny.grid(self.height, self.width)


# On a UNet the coarser level is 8 x 12, so that the paper's 8 x 8 tiles are both met: those that fit and those that
# must be padded. Grids are not square, so that exchanged sides change the result.
GRIDS: dict[str, tuple[int, int]] = {"sd15": (16, 24), "sdxl": (16, 24)}
# One of each way through the engine; the contract suite runs over the rest.
NAMES = (
    *("sd15", "sdxl", "pixart", "flux", "sd3", "flux2", "qwen-image", "sana", "auraflow"),
    *("wan", "ltx", "hunyuan-video"),
)
MODELS: dict[str, GoldenModel] = {
    tiny.name: GoldenModel(tiny, *GRIDS.get(tiny.name, (8, 16))) for tiny in TINY_MODELS if tiny.name in NAMES
} | {
    # Sides that no tile divides.
    f"{tiny.name}-odd": GoldenModel(tiny, 9, 13)
    for tiny in TINY_MODELS
    if tiny.name in ("pixart", "flux")
}
# explain() runs a model several times without weights, which takes ten times as long as the eight calls. So labels that
# take different ways through the engine are explained on one model of each kind of attention, and one label on most.
WAYS = ("balanced", "keys", "released", "toma-stack", "toma-list", "toma-mask")
MORE_WAYS = (*WAYS, "paper", "toma-queries", "balanced-site", "quality-joint", "tomesd", "todo")
EXPLAINED: Mapping[str, tuple[str, ...]] = {
    "pixart": MORE_WAYS,
    "flux": WAYS,
    "sd15": ("balanced", "keys"),
    "pixart-odd": (),
    "flux-odd": (),
}
EXPLAINED_ELSEWHERE = ("balanced",)
# Counting multiply-adds makes a call three times as slow, which matters on UNets: they have most operators.
COUNTED: Mapping[str, tuple[str, ...]] = {"sd15": WAYS, "sdxl": WAYS}

# Models and labels whose compiled graphs are counted.
COMPILED_MODELS = ("sd15", "flux")
COMPILED_LABELS = ("balanced", "toma-site", "toma-stack")

# Embedded models with how each is guided by a second prompt, and what generates an image with them.
IMAGE_MODELS: dict[str, dict[str, Any]] = {
    "emoji-sd": {"guidance_scale": 3.0},
    "photo-flux": {"true_cfg_scale": 3.0, "negative_prompt": ""},
}
PRESETS: dict[str, Callable[[Any], tm.MergeConfig]] = {
    "quality": lambda pipe: (
        tm.SampledKeys() if hasattr(pipe, "unet") else tm.preset("quality", pipe, merge_tokens=True)
    ),
    "balanced": lambda pipe: tm.preset("balanced", pipe, merge_tokens=True),
    "fast": lambda pipe: tm.preset("fast", pipe, merge_tokens=True),
}
