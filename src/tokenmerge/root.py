"""The hook on the model itself: follows the steps, and refuses to do nothing in silence."""

from __future__ import annotations

import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.config import MergeConfig
from tokenmerge.errors import ConfigError, NothingMergedError
from tokenmerge.fits import misfit
from tokenmerge.hooked import Args, Kwargs, outside_compile
from tokenmerge.models.base import Family, Part
from tokenmerge.plan import MergePlan
from tokenmerge.sites import BlockSite, StackSite


class RootSite:
    """Everything attached to one model."""

    def __init__(self, model: nn.Module, family: Family, config: MergeConfig) -> None:
        self.model = model
        self.family = family
        self.config = config
        self.plan = MergePlan(*config.refresh_every)
        self.positional: tuple[str, ...] = ()
        self.fixed_order = ""
        self.interleaved = False
        self.last_call: tuple[Args, Kwargs] | None = None
        self.calls = self.selections = self.weightings = 0
        self.stacks = self._build_stacks()
        self._handles: list[RemovableHandle] = []

    def _build_stacks(self) -> list[StackSite]:
        stacks = self.family.stacks(self.model)
        reason = misfit(self.config, stacks)
        if reason is not None:
            raise ConfigError(f"{type(self.config).__name__} does not fit {self.family.name}: {reason}")
        names = [block.name for stack in stacks for block in stack.blocks]
        skipped = _skipped(self.config.skip_blocks, self.family.default_skip(len(names)), names)
        sites = []
        for stack in stacks:
            site = StackSite(stack, self)
            previous: BlockSite | None = None
            for block in stack.blocks:
                if block.name in skipped:
                    previous = None
                    continue
                current = BlockSite(block, site, names.index(block.name), len(names))
                if previous is not None:
                    previous.last_of_run = current.first_of_run = False
                site.blocks.append(current)
                previous = current
            sites.append(site)
        if not any(block.parts for site in sites for block in site.blocks):
            raise NothingMergedError(
                f"nothing would be merged in {type(self.model).__name__}: skip_blocks={self.config.skip_blocks!r} and "
                f"parts={self.config.parts!r} leave none of its {len(names)} blocks. Skip fewer blocks, or name parts "
                f"that the model has."
            )
        return sites

    def attach(self) -> None:
        self._handles = [self.model.register_forward_pre_hook(self.enter, with_kwargs=True)]
        for stack in self.stacks:
            stack.attach()
        self._handles.append(self.model.register_forward_hook(self.leave))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for stack in self.stacks:
            stack.detach()
        self.plan.forget()

    @outside_compile
    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        for stack in self.stacks:
            for block in stack.blocks:
                for part in block.parts:
                    part.attach()  # does nothing unless a layer has been replaced since the last call
        call = self.family.read_call(args, kwargs)
        self.positional = call.positional
        self.fixed_order = call.fixed_order
        self.interleaved = call.interleaved
        self.calls += 1
        self.plan.begin_call(call.timestep, call.signature)
        positions = {name: kwargs[name] for name in self.family.positions if name in kwargs}
        self.last_call = _shapes_of(args), {**_shapes_of(kwargs), **positions}

    @outside_compile
    def leave(self, module: nn.Module, args: Args, output: Any) -> None:
        for stack in self.stacks:
            stack.entered = None
        if not any(part.active for stack in self.stacks for block in stack.blocks for part in block.parts):
            raise NothingMergedError(
                f"nothing was merged in this call ({self._why_nothing()}). Use a larger image, a lower min_tokens or "
                f"other parts, or take merging out with handle.remove()."
            )

    def _why_nothing(self) -> str:
        reasons = [
            f"{' x '.join(map(str, stack.grid or ()))}: {stack.reason or 'none of the chosen parts can merge here'}"
            for stack in self.stacks
            if stack.blocks
        ]
        return "; ".join(dict.fromkeys(reasons))

    def weighs(self, part: Part) -> bool:
        """Does self-attention get weights for what its keys stand for?"""
        return self.config.proportional and part.mask != "none"

    def count_refresh(self, selected: bool) -> None:
        self.selections += selected
        self.weightings += 1


def root_site_of(model: nn.Module) -> RootSite | None:
    """The root site attached to a model, if there is one: found by its hook, so a deepcopy knows its own."""
    for hook in model._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, RootSite):
            return owner
    return None


def _shapes_of(value: Any) -> Any:
    """The arguments of a call with every tensor replaced by an empty one of its shape: nothing is kept alive."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_shapes_of(item) for item in value)
    if isinstance(value, dict):
        return {key: _shapes_of(item) for key, item in value.items()}
    return value


def _skipped(choice: int | tuple[str, ...] | None, default: int, names: list[str]) -> set[str]:
    first = default if choice is None else choice
    if isinstance(first, int):
        return set(names[:first])
    for pattern in first:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(
                f"skip_blocks has {pattern!r}, which matches no block: names look like {names[0]!r}, and * stands for "
                f"anything."
            )
    return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in first)}
