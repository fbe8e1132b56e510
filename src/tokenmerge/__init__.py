"""Faster image generation with diffusion models, without training, by merging redundant tokens."""

from tokenmerge.api import Handle, apply, merged, remove
from tokenmerge.config import MergeConfig
from tokenmerge.errors import TokenMergeError
from tokenmerge.methods import LowerBound, ToDo, ToFu, ToMA, ToMeSD
from tokenmerge.models import register_family

__version__ = "0.1.0"

__all__ = [
    "Handle",
    "LowerBound",
    "MergeConfig",
    "ToDo",
    "ToFu",
    "ToMA",
    "ToMeSD",
    "TokenMergeError",
    "apply",
    "merged",
    "register_family",
    "remove",
]
