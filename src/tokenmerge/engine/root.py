"""The hook on the model itself: follows the steps, and refuses to do nothing in silence.

Plain PyTorch forward hooks put operators into a model. Four kinds, from the outside in: the root model (which step is
it?), the owner of a stack (which grid is it?), a block (refresh the plan; merge here under scope "block" and "stack"),
a part of a block (merge here under scope "site"). All are bound methods of plain objects, so deepcopy copies them with
the model and save_pretrained never sees them.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.around_site import AroundSite
from tokenmerge.engine.block_site import BlockSite
from tokenmerge.engine.caches import CACHE, answered_by_another, keeps_outputs
from tokenmerge.engine.calls import call_batch, for_counting, refuse_nothing
from tokenmerge.engine.fits import misfit, suited
from tokenmerge.engine.graph_room import make_room
from tokenmerge.engine.hooked import Args, Kwargs, argument_names, given_argument, outside_compile
from tokenmerge.engine.plan import MergePlan
from tokenmerge.engine.same_tensor import names_of
from tokenmerge.engine.stack_site import StackSite
from tokenmerge.errors import ConfigError, MergeRuntimeError, NothingMergedError, NothingMergedWarning
from tokenmerge.models.base import Family, Part


class RootSite:
    """Everything attached to one model."""

    def __init__(self, model: nn.Module, family: Family, config: MergeConfig, keep: Tensor | None = None) -> None:
        self.model = model
        self.family = family
        self.config = self._suited = config  # with a scope that suits the model, once its stacks are known
        self._chooses_scope = config.scope is None
        self.keep = keep  # (H, W), 1 where tokens stay as they are
        self.plan = MergePlan(*config.refresh_every, config.whole_every, config.whole_within, config.learns)
        self.positional: tuple[str, ...] = ()
        self.fixed_order = ""
        self.interleaved = False
        self.attached = False  # compiled code goes on calling hooks that were removed, so they ask
        self.batch = 0
        self.cached: tuple[str, ...] = ()  # parts left alone, because a cache keeps what they give
        self.thinnable: tuple[str, ...] = ()  # parts whose attention takes few keys where those are thinned
        self.like = self  # whose caches and attention are looked at: explain's weightless twin is like the real model
        self.last_call: tuple[Args, Kwargs] | None = None
        self.calls = self.selections = self.weightings = 0
        self.merged_calls = self.whole_calls = 0  # of those that came to their end
        self.draw: Tensor | None = None  # () the step, where tokens are drawn at random: a number would compile anew
        self.fixed_progress: float | None = None  # set to explain what happens there, where no timestep says it
        self.resting = False  # this step runs whole, because of merge_every or detail_every
        self.lends = False  # and what it gives is remembered, because of detail_every
        self.again = False  # the whole step runs once more, merged, to tell what merging loses
        self.caches = False  # something answers at some steps with what it gave at earlier ones
        self.step_config: MergeConfig | None = config  # with the ratios of this step; None if they merge nothing
        self.ratios: tuple[float, ...] | None = ()  # of this step, if they change
        self.stacks = self._build_stacks()
        self._handles: list[RemovableHandle] = []

    def _build_stacks(self) -> list[StackSite]:
        stacks = self.family.stacks(self.model)
        self.config = self._suited = suited(self.config, stacks)
        reason = misfit(self.config, stacks)
        if reason is not None:
            raise ConfigError(f"{type(self.config).__name__} does not fit {self.family.name}: {reason}")
        if self.keep is not None and not self.config.takes_mask:
            raise ConfigError(
                f"{type(self.config).__name__} cannot keep a part of the image as it is: use ToMA with keep, or leave "
                f"keep out."
            )
        names = [block.name for stack in stacks for block in stack.blocks]
        if not names:
            raise NothingMergedError(
                f"nothing would be merged in this {type(self.model).__name__}: it has none of the transformer blocks "
                f"that {self.family.name} models have. Use it as it is."
            )
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
                current.before = previous
                site.blocks.append(current)
                previous = current
            sites.append(site)
        if not any(block.parts for site in sites for block in site.blocks):
            raise NothingMergedError(
                f"nothing would be merged in {type(self.model).__name__}: skip_blocks={self.config.skip_blocks!r} and "
                f"parts={self.config.parts!r} leave none of its {len(names)} blocks. Skip fewer blocks, or name parts "
                f"that the model has."
            )
        for progress in self.config.moments():
            self.config.at(progress)  # ratios that do not fit each other raise before the first step
        return sites

    def attach(self) -> None:
        self.attached = True
        self._handles = [self.model.register_forward_pre_hook(self.enter, with_kwargs=True)]
        for stack in self.stacks:
            stack.attach()
        self._handles.append(self.model.register_forward_hook(self.leave, with_kwargs=True))

    def detach(self) -> None:
        self.attached = False
        for handle in self._handles:
            handle.remove()
        for stack in self.stacks:
            stack.detach()
        self.plan.forget()
        self._tell_if_all_was_whole()

    @outside_compile
    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if not self.attached or self.again:
            return
        refuse_nothing(args, kwargs)
        for stack in self.stacks:
            stack.follow_changes()
        make_room([self.model, *(block.block.module for stack in self.stacks for block in stack.blocks)])
        call = self.family.read_call(args, kwargs)
        self.positional = call.positional
        self.cached = self.like.cached_parts()
        self.thinnable = self.like.thinnable_parts()
        self.fixed_order = call.fixed_order
        self.caches = bool(self.cached) or self.like.caches_blocks()
        if not self.fixed_order and self.caches:
            self.fixed_order = CACHE
        self._follow_order(bool(self.fixed_order or self.positional))
        self.interleaved = call.interleaved
        self.batch = call_batch(self.model, args, kwargs)
        self.calls += 1
        # What is made in inference mode cannot take part in training.
        signature = (call.signature, torch.is_inference_mode_enabled())
        self.plan.begin_call(call.timestep, signature, self._condition(args, kwargs))
        self.lends = self.plan.whole
        for stack in self.stacks:
            stack.runs_again = self.lends and self.config.learns and self._can_run_again(stack.stack.owner)
        self.resting = self.lends or self.plan.step % self.config.merge_every != 0
        self._read_ratios()
        names = argument_names(self.model)
        if self.config.redraws:
            self.draw = torch.full((), self.plan.step, device=given_argument(names, args, kwargs, names[0]).device)
        self.last_call = for_counting(names, self.family.positions, args, kwargs)

    def _follow_order(self, fixed: bool) -> None:
        """Merge around parts as long as calls need tokens in their order, where the choice of scope was left to us."""
        scope = "site" if fixed and self._chooses_scope else self._suited.merged_per
        if scope == self.config.scope:
            return
        self.config = self.config.with_scope(scope)
        self.plan.forget()
        for stack in self.stacks:
            for block in stack.blocks:
                for part in block.parts:
                    part.detach()
                    part.attach()

    def thinnable_parts(self) -> tuple[str, ...]:
        """Names of the parts whose attention, as it is now, can be given few keys."""
        if not self.config.thin_keys or not self.config.whole_every or self.keep is not None:
            return ()
        parts = (part for stack in self.stacks for block in stack.blocks for part in block.parts)
        return tuple(part.name for part in parts if part.attention.takes_keys_apart)

    def cached_parts(self) -> tuple[str, ...]:
        """Names of the parts in which a cache keeps what was computed."""
        parts = (part for stack in self.stacks for block in stack.blocks for part in block.parts)
        return tuple(part.name for part in parts if part.cached)

    def caches_blocks(self) -> bool:
        """Does a cache keep what whole blocks give? One that is skipped counts: caches add up what several give."""
        return keeps_outputs(block.module for stack in self.stacks for block in stack.stack.blocks)

    def _condition(self, args: Args, kwargs: Kwargs) -> Hashable:
        """What a pipeline makes once a picture: the text's embedding, and the places of tokens where they are given."""
        names = argument_names(self.model)
        constant = ("encoder_hidden_states", *self.family.positions)
        return names_of(tuple(given_argument(names, args, kwargs, name) for name in constant))

    def _read_ratios(self) -> None:
        self.step_config = self.config
        if not self.config.varies:
            return
        progress = self.plan.progress if self.fixed_progress is None else self.fixed_progress
        if progress is None:
            raise MergeRuntimeError(
                f"{type(self.model).__name__} was called without a timestep, so a ratio that changes cannot follow the "
                f"steps: pass timesteps, or give one number as ratio."
            )
        self.step_config = config = self.config.at(progress)
        self.ratios = None if config is None else tuple(getattr(config, field) for field in config.ratios)

    @torch.no_grad()
    def run_again(self, owner: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """At a whole step, run an owner of blocks once more, merged, so that every site learns what that loses.

        What it gives is the same as before, for every site adds what it loses.
        """
        self.again, self.resting, self.lends = True, False, False
        self.plan.learn(True)
        try:
            owner(*args, **kwargs)
        finally:
            self.again, self.resting, self.lends = False, True, True
            self.plan.learn(False)

    def _can_run_again(self, owner: nn.Module) -> bool:
        """Would a second run be the same as the first, but for merging?

        A cache would take it for a step of its own, and hooks of others could change its arguments once more. Blocks
        that run again in the backward pass would then find themselves merged, though they ran whole.
        """
        checkpointed = getattr(owner, "gradient_checkpointing", False)
        trains = torch.is_grad_enabled() and (owner.training or checkpointed)
        caches = self.caches or keeps_outputs(owner.modules()) or answered_by_another(owner)
        ours = (RootSite, StackSite, AroundSite)
        hooks = owner._forward_pre_hooks.values()
        changed = any(not isinstance(getattr(hook, "__self__", None), ours) for hook in hooks)
        return not (trains or caches or changed)

    @outside_compile
    def leave(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        if not self.attached or self.again:
            return
        if any(stack.runs_again and stack.stack.owner is module for stack in self.stacks):
            self.run_again(module, args, kwargs)
        for stack in self.stacks:
            stack.entered = stack.entered_whole = None
        merges = not self.resting and any(
            part.active for stack in self.stacks for block in stack.blocks for part in block.parts
        )
        if not merges and not self.resting and not self._merges_later():
            raise NothingMergedError(
                f"nothing was merged in this call ({self._why_nothing()}). Use a larger image, a lower min_tokens or "
                f"other parts, or take merging out with handle.remove()."
            )
        self.merged_calls += merges
        self.whole_calls += not merges

    def _merges_later(self) -> bool:
        """Whether a ratio that changes would merge anything on these grids at another step."""
        return self.config.varies and any(
            stack.merges_with(self.config.at(progress))
            for progress in self.config.moments()
            for stack in self.stacks
            if stack.blocks
        )

    def _tell_if_all_was_whole(self) -> None:
        if self.whole_calls and not self.merged_calls:
            warnings.warn(
                "nothing was merged: the pictures had so few steps that ratio was 0 at all of them. Take more steps, "
                "or let ratio begin above 0.",
                NothingMergedWarning,
                stacklevel=2,
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


def _skipped(choice: int | tuple[int, int] | tuple[str, ...] | None, default: int, names: list[str]) -> set[str]:
    if choice is None or isinstance(choice, int):
        choice = (default if choice is None else choice), 0
    patterns = [item for item in choice if isinstance(item, str)]
    if not patterns:
        first, last = (int(item) for item in choice or (0, 0))  # an empty list skips none
        return {*names[:first], *names[max(0, len(names) - last) :]}
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(
                f"skip_blocks has {pattern!r}, which matches no block: names look like {names[0]!r}, and * stands for "
                f"anything."
            )
    return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
