"""The merging methods, one file each: a config and how it turns tokens into operators. None imports diffusers."""

from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.todo import ToDo
from tokenmerge.methods.tofu import ToFu
from tokenmerge.methods.toma import ToMA
from tokenmerge.methods.tomesd import ToMeSD

__all__ = ["LowerBound", "ToDo", "ToFu", "ToMA", "ToMeSD"]
