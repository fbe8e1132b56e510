"""Faster image and video generation with diffusion models, without training: merged tokens and skipped steps."""

from tokenmerge.api import Handle, apply, merged, remove
from tokenmerge.autotune.break_even import worthwhile
from tokenmerge.autotune.compare import compare
from tokenmerge.autotune.tune import tune
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.errors import TokenMergeError
from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.sampled_keys import SampledKeys
from tokenmerge.methods.skip_steps import SkipSteps
from tokenmerge.methods.tile_mean import TileMean
from tokenmerge.methods.todo import ToDo
from tokenmerge.methods.tofu import ToFu
from tokenmerge.methods.toma import ToMA
from tokenmerge.methods.tomesd import ToMeSD
from tokenmerge.models import register_family
from tokenmerge.presets import preset
from tokenmerge.zoo import autoencoder as _autoencoder  # noqa: F401 - so that plain diffusers can load our models

__version__ = "0.2.0"

__all__ = [
    "FullSteps",
    "Handle",
    "LowerBound",
    "MergeConfig",
    "SampledKeys",
    "SkipSteps",
    "TileMean",
    "ToDo",
    "ToFu",
    "ToMA",
    "ToMeSD",
    "TokenMergeError",
    "apply",
    "compare",
    "merged",
    "preset",
    "register_family",
    "remove",
    "tune",
    "worthwhile",
]
