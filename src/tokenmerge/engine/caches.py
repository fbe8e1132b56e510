"""Caches of diffusers, which answer for a module at some steps with what it gave at earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

# The beginning of a sentence that says what cannot be done because of one.
CACHE = "a cache (enable_cache) gives at some steps what blocks or their parts gave at earlier ones"

# How diffusers' own hooks (`diffusers.hooks.ModelHook`) hold what they keep from step to step.
MEMORIES = ("state", "state_manager")


def keeps_outputs(modules: Iterable[nn.Module]) -> bool:
    """Is there a cache on any of the modules themselves? Looked up at every call, so no attribute is searched for."""
    return any(_is_cache(hook) for module in modules for hook in _hooks_of(module))


def answered_by_another(module: nn.Module) -> bool:
    """Has its forward been replaced, on itself or in its class, as caches from elsewhere do? Not by an offloader's."""
    if "forward" in vars(module):
        return not any(name in vars(module) for name in ("_hf_hook", "_diffusers_hook"))
    kind = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    return bool(vars(kind)["forward"].__module__ != kind.__module__)


def _hooks_of(module: nn.Module) -> Iterable[Any]:
    registry = module.__dict__.get("_diffusers_hook")
    return () if registry is None else registry.hooks.values()


def _is_cache(hook: Any) -> bool:
    """Does it run instead of the module, and remember? Offloading and casting only run beside it."""
    return hasattr(hook, "new_forward") and any(hasattr(hook, memory) for memory in MEMORIES)
