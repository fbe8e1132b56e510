"""What else people put into a model, and what merging does about it: caches, fused projections, PAG, torch.compile.

Also whether a method fits a model at all. Something breaks together with another feature: the rule is here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.skipping import Skipping
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Stack, chosen_parts

# -- caches of diffusers, which answer for a module at some steps with what it gave at earlier ones ------------------

# The beginning of a sentence that says what cannot be done because of one.
CACHE = "a cache (enable_cache) gives at some steps what blocks or their parts gave at earlier ones"

# How diffusers' own hooks (`diffusers.hooks.ModelHook`) hold what they keep from step to step.
MEMORIES = ("state", "state_manager")


def keeps_outputs(modules: Iterable[nn.Module]) -> bool:
    """Whether there is a cache on any of the modules themselves."""
    return any(_is_cache(hook) for module in modules for hook in _hooks_of(module))


def _hooks_of(module: nn.Module) -> Iterable[Any]:
    registry = module.__dict__.get("_diffusers_hook")
    return () if registry is None else registry.hooks.values()


def _is_cache(hook: Any) -> bool:
    """Whether it runs instead of the module, and caches. Offloading and casting only run in addition to it."""
    return hasattr(hook, "new_forward") and any(hasattr(hook, memory) for memory in MEMORIES)


def refuse_cache(step_speedup: float) -> None:
    raise MergeRuntimeError(
        f"a cache (enable_cache) is on, and step_speedup={step_speedup:g} skips steps: both answer for the model at "
        f"some steps, and one does not see what the other did. Switch the cache off with disable_cache(), or use a "
        f"config without step_speedup."
    )


def answered_by_another(module: nn.Module) -> bool:
    """Whether its forward was replaced, on itself or in its class, as caches from elsewhere do, but not offloaders."""
    own = vars(module).get("forward")
    if isinstance(own, Skipping):
        own = own.forward_before
    if own is not None:
        return not any(name in vars(module) for name in ("_hf_hook", "_diffusers_hook"))
    kind = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    return bool(vars(kind)["forward"].__module__ != kind.__module__)


def can_run_twice(owner: nn.Module, ours: tuple[type, ...]) -> bool:
    """Whether a second run of a module would be the same as the first, but for merging.

    A cache would take it for another step, and hooks of others could change its arguments once more. Blocks that run
    again in the backward pass would then find themselves merged, though they ran full.
    """
    checkpointed = getattr(owner, "gradient_checkpointing", False)
    if torch.is_grad_enabled() and (owner.training or checkpointed):
        return False
    if keeps_outputs(owner.modules()) or answered_by_another(owner):
        return False
    return all(isinstance(getattr(hook, "__self__", None), ours) for hook in owner._forward_pre_hooks.values())


# -- attention processors ---------------------------------------------------------------------------------------------


def takes_other_keys(attention: nn.Module) -> bool:
    """Whether an attention that has an argument for keys would, as it is now, take keys that are not its queries'."""
    return not _is_fused(attention) and not _is_perturbed(attention)


def refuse_fused(name: str, attention: nn.Module) -> None:
    if _is_fused(attention):
        raise MergeRuntimeError(
            f"{name} makes queries, keys and values by one fused projection, so it cannot read other keys than those "
            f"of its queries: call unfuse_qkv_projections(), or use a method with keys='merged'."
        )


def refuse_perturbed(name: str, attention: nn.Module) -> None:
    if _is_perturbed(attention):
        raise MergeRuntimeError(
            f"{name} is perturbed for guidance (PAG) by a processor that attends to a part of the batch at a time, so "
            f"its keys can neither be weighted nor sampled: leave the block alone with skip_blocks, or use "
            f"proportional=False and keys='merged'."
        )


def _is_fused(attention: nn.Module) -> bool:
    """Whether one projection makes queries, keys and values. Unfusing leaves that in place, and another processor."""
    return type(getattr(attention, "processor", None)).__name__.startswith("Fused")


def _is_perturbed(attention: nn.Module) -> bool:
    """Whether perturbed-attention guidance (PAG) has put its own processor there."""
    return type(getattr(attention, "processor", None)).__name__.startswith("PAG")


# -- torch.compile ----------------------------------------------------------------------------------------------------

# torch.compile makes a graph for each kind of call it meets, and by default gives up after eight, counted over all
# blocks of a class. Merging has several kinds of step, and different hooks keep blocks from sharing a graph: what
# compiles unmerged must not fail for being merged.
MOST_GRAPHS = 1024
LIMITS = ("recompile_limit", "accumulated_recompile_limit")


def is_compiled(modules: Iterable[nn.Module]) -> bool:
    return "torch._dynamo" in sys.modules and any(module._compiled_call_impl is not None for module in modules)


class GraphLimits:
    """PyTorch's limits of graphs: raised while a compiled model is merged, and as they were once none is."""

    def __init__(self) -> None:
        self._users: WeakSet[Any] = WeakSet()
        self._before: dict[str, int] = {}

    def raise_for(self, user: object) -> None:
        if user in self._users:
            return
        config = sys.modules["torch._dynamo"].config
        if not self._before:
            self._before = {name: getattr(config, name) for name in LIMITS}
            for name, limit in self._before.items():
                setattr(config, name, max(limit, MOST_GRAPHS))
        self._users.add(user)

    def release(self, user: object) -> None:
        if user not in self._users:
            return
        self._users.discard(user)
        if self._users:
            return
        # Graphs of merged steps count against the lower limits: without a reset, the model would not be compiled again.
        torch.compiler.reset()
        for name, limit in self._before.items():
            setattr(sys.modules["torch._dynamo"].config, name, limit)
        self._before = {}


graph_limits = GraphLimits()


# -- methods and models -----------------------------------------------------------------------------------------------


SEPARATE_KEYS = "Use a method that merges queries, such as TileMean, with keys='merged'"


@dataclass(frozen=True)
class Misfit:
    """Why a method does not fit a model."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}."


def suited(config: MergeConfig, stacks: list[Stack]) -> MergeConfig:
    """The config with a scope that a model with these stacks allows, if the choice was left to us."""
    if config.scope is not None:
        return config
    return config.with_scope("site" if _fixed_order(stacks) else config.merged_per)


def misfit(config: MergeConfig, stacks: list[Stack]) -> Misfit | None:
    """Why the method does not fit a model with these stacks; None if it fits."""
    fixed = _fixed_order(stacks)
    if fixed and config.merged_per != "site":
        return Misfit(f"{fixed}, so whole blocks cannot be merged", "Use scope='site'")
    blocks = [block for stack in stacks for block in stack.blocks]
    parts = [part for block in blocks for part in chosen_parts(block.parts, config.parts, config.separate_keys)]
    if config.separate_keys and not any(part.can_separate_keys for part in parts):
        return Misfit("it has no self-attention that could read other keys than those of its queries", SEPARATE_KEYS)
    return None


def _fixed_order(stacks: list[Stack]) -> str:
    return next((stack.fixed_order for stack in stacks if stack.fixed_order), "")
