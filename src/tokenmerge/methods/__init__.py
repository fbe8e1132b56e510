"""The merging methods, one file each: a config and how it turns tokens into operators. None imports diffusers."""

from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.toma import ToMA

__all__ = ["LowerBound", "ToMA"]
