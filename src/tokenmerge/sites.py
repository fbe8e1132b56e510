"""Hooks: plain PyTorch forward hooks that put operators into a model and take them out again.

Four kinds, from the outside in: the root model (which step is it?), the owner of a stack (which grid is it?), a block
(refresh the plan; merge here under scope "block" and "stack"), a part of a block (merge here under scope "site").
All are bound methods of plain objects, so deepcopy copies them with the model and save_pretrained never sees them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.config import CannotMerge, Layout, MergeConfig, Operators, Place
from tokenmerge.errors import ConfigError, MergeRuntimeError, NothingMergedError
from tokenmerge.models.base import Block, Family, Part, Stack
from tokenmerge.plan import GroupPlan, MergePlan

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class PartSite:
    """Runs one part of a block on merged tokens."""

    def __init__(self, part: Part, block: BlockSite) -> None:
        self.part = part
        self.block = block
        self.active = False  # set when the grid is known
        self.seen = 0  # tokens the part's module got in its last call

    def attach(self) -> list[RemovableHandle]:
        module = self.block.block.module.get_submodule(self.part.module)
        return [
            module.register_forward_pre_hook(self.enter, with_kwargs=True),
            module.register_forward_hook(self.leave),
        ]

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active:
            return None
        tokens, put = _take(args, kwargs)
        if tokens.shape[1] != self.block.stack.tokens:
            raise MergeRuntimeError(
                f"{self.block.block.name}.{self.part.module} was given {tokens.shape[1]} of the "
                f"{self.block.stack.tokens} tokens of its grid. If feed-forward chunking is on, turn it off with "
                f"disable_forward_chunking(), or leave 'mlp' out of parts."
            )
        operators = self.block.operators
        kwargs = dict(kwargs)
        if self.part.own_keys:
            self._merge_keys(tokens, operators, kwargs)
        merged = tokens if operators.queries is None else operators.queries.merge(tokens)
        if not torch.compiler.is_compiling():
            self.seen = merged.shape[1]
        return put(merged, kwargs)

    def _merge_keys(self, tokens: Tensor, operators: Operators, kwargs: Kwargs) -> None:
        keys = operators.keys
        if keys is not operators.queries:
            kwargs["encoder_hidden_states"] = tokens if keys is None else keys.merge(tokens)
        if kwargs.get("attention_mask") is not None:
            raise MergeRuntimeError(
                f"{self.block.block.name}.{self.part.module} was given an attention mask over image tokens, which "
                f"merging cannot follow: leave 'self' out of parts."
            )
        if self.block.stack.root.config.proportional and keys is not None and keys.mass is not None:
            kwargs["attention_mask"] = keys.mass.log().to(tokens.dtype).unsqueeze(1)  # (B, 1, M)

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        if not self.active or (queries := self.block.operators.queries) is None:
            return None
        return queries.unmerge(output)


class BlockSite:
    """Refreshes the plan where it is due; under scope "block" and "stack" also merges for the whole block."""

    def __init__(self, block: Block, stack: StackSite, index: int, count: int) -> None:
        self.block = block
        self.stack = stack
        self.place = Place(block.name, index, count)
        self.parts = [PartSite(part, self) for part in block.parts if part.kind in stack.root.config.parts]
        self.first_of_run = self.last_of_run = True  # of neighbours that are all merged
        self.active = False
        self.group = GroupPlan()
        self.entered: tuple[Tensor, Tensor] | None = None  # tokens before and after merging, until they leave

    def attach(self) -> list[RemovableHandle]:
        handles = [
            self.block.module.register_forward_pre_hook(self.enter, with_kwargs=True),
            self.block.module.register_forward_hook(self.leave),
        ]
        if self.stack.root.config.scope == "site":
            for part in self.parts:
                handles += part.attach()
        return handles

    @property
    def operators(self) -> Operators:
        operators = self.group.current.operators
        assert operators is not None, "a block refreshes its plan before its parts run"
        return operators

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active:
            return None
        tokens, put = _take(args, kwargs)
        if self.first_of_run and self.stack.reorders:
            tokens = self.stack.regions.gather(tokens)
        scope = self.stack.root.config.scope
        if scope != "stack" or self.first_of_run:
            self._refresh(tokens)
            if scope != "site":
                queries = self.operators.queries
                assert queries is not None
                merged = queries.merge(tokens)
                # Kept by the run's last block, so that what merging blurred stays sharp: x + U(T(Mx) - Mx).
                self.stack.entered = (tokens, merged)
                tokens = merged
        return put(tokens, kwargs)

    def _refresh(self, tokens: Tensor) -> None:
        due = self.group.current
        if not (due.select_due or due.weights_due):
            return
        previous = None if due.select_due else due.operators
        layout = self.stack.layout
        assert layout is not None
        due.operators = self.stack.root.config.plan(tokens, layout, self.place, previous)
        if not torch.compiler.is_compiling():
            self.stack.root.count_refresh(selected=previous is None)
        due.select_due = due.weights_due = False

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        if not self.active:
            return None
        scope = self.stack.root.config.scope
        if scope == "block" or (scope == "stack" and self.last_of_run):
            assert self.stack.entered is not None
            tokens, merged = self.stack.entered
            self.stack.entered = None
            queries = self.operators.queries
            assert queries is not None
            output = tokens + queries.unmerge(output - merged)
        if self.last_of_run and self.stack.reorders:
            output = self.stack.regions.scatter(output)
        return output


class StackSite:
    """Learns the grid of its blocks and decides, once per grid, what becomes of them."""

    def __init__(self, stack: Stack, root: RootSite) -> None:
        self.stack = stack
        self.root = root
        self.blocks: list[BlockSite] = []  # those not skipped
        self.grid: tuple[int, ...] | None = None
        self.positional: tuple[str, ...] = ()
        self.tokens = 0
        self.layout: Layout | None = None
        self.reason = "not called yet"  # why nothing is merged here, where nothing is
        self.reorders = False
        self.entered: tuple[Tensor, Tensor] | None = None

    def attach(self) -> list[RemovableHandle]:
        handles = [self.stack.owner.register_forward_pre_hook(self.enter, with_kwargs=True)]
        for block in self.blocks:
            handles += block.attach()
        return handles

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        grid = self.stack.grid(args, kwargs)
        if grid != self.grid or self.root.positional != self.positional:
            self.settle(grid, self.root.positional, _device_of(args, kwargs))

    def settle(self, grid: tuple[int, ...], positional: tuple[str, ...], device: torch.device) -> None:
        """Fix everything that depends on the grid alone."""
        config = self.root.config
        self.grid, self.positional = grid, positional
        self.tokens = 1
        for side in grid:
            self.tokens *= side
        self.layout, self.reason = self._layout(grid)
        parts_left_alone = set(positional)
        if parts_left_alone and config.scope != "site" and self.layout is not None:
            raise MergeRuntimeError(
                f"this call looks tokens up by position in {', '.join(positional)}-attention (IP-Adapter masks do), "
                f"which merging whole blocks would shorten: use scope='site'."
            )
        regions = None if self.layout is None else self.layout.regions
        self.reorders = (
            regions is not None and not regions.natural and not regions.padded and not positional
        )
        if regions is not None:
            self.regions = regions.to(device)
        for block in self.blocks:
            block.active = self.layout is not None
            block.place = Place(
                block.place.name, block.place.index, block.place.count, in_region_order=self.reorders
            )
            block.group = self.root.plan.group(self._group_key(block, grid))
            for part in block.parts:
                part.active = block.active and self._part_merges(part.part, parts_left_alone)

    def _layout(self, grid: tuple[int, ...]) -> tuple[Layout | None, str]:
        config = self.root.config
        if self.tokens < config.min_tokens:
            return None, f"{self.tokens} tokens, fewer than min_tokens={config.min_tokens}"
        try:
            return config.layout(grid), ""
        except CannotMerge as reason:
            return None, str(reason)
        except ConfigError as error:
            raise ConfigError(f"{self.stack.name}: {error}") from None

    def _part_merges(self, part: Part, left_alone: set[str]) -> bool:
        assert self.layout is not None
        if part.kind in left_alone:
            return False
        queries_merge = self.layout.kept < self.layout.tokens
        keys_merge = part.own_keys and self.layout.kept_keys < self.layout.tokens
        return queries_merge or keys_merge or self.layout.kept == self.layout.tokens == self.layout.kept_keys

    def _group_key(self, block: BlockSite, grid: tuple[int, ...]) -> Hashable:
        share = self.root.config.share
        if share == "layer":
            return block.block.name
        # Blocks in region order and blocks in grid order cannot read each other's operators.
        where = self.stack.level if share == "level" else ""
        return where, grid, self.reorders


class RootSite:
    """Attached to the model itself: follows the steps and refuses to do nothing in silence."""

    def __init__(self, model: nn.Module, family: Family, config: MergeConfig) -> None:
        self.model = model
        self.family = family
        self.config = config
        self.plan = MergePlan(*config.refresh_every)
        self.positional: tuple[str, ...] = ()
        self.last_call: tuple[Args, Kwargs] | None = None
        self.selections = self.weightings = self.calls = 0
        self._handles: list[RemovableHandle] = []
        self.stacks = self._build_stacks()

    def _build_stacks(self) -> list[StackSite]:
        stacks = self.family.stacks(self.model)
        names = [block.name for stack in stacks for block in stack.blocks]
        skipped = _skipped(self.config.skip_blocks, self.family.default_skip, names)
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
                f"parts={self.config.parts!r} leave none of its {len(names)} blocks. Skip fewer blocks or name more parts."
            )
        return sites

    def attach(self) -> None:
        self._handles = [self.model.register_forward_pre_hook(self.enter, with_kwargs=True)]
        for stack in self.stacks:
            self._handles += stack.attach()
        self._handles.append(self.model.register_forward_hook(self.leave))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @torch.compiler.disable
    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        call = self.family.read_call(args, kwargs)
        self.positional = call.positional
        self.calls += 1
        self.plan.begin_call(call.timestep, call.signature)
        self.last_call = _shapes_of(args), _shapes_of(kwargs)

    @torch.compiler.disable
    def leave(self, module: nn.Module, args: Args, output: Any) -> None:
        for stack in self.stacks:
            stack.entered = None
        if not any(stack.layout is not None and stack.blocks for stack in self.stacks):
            reasons = "; ".join(dict.fromkeys(f"{_by(s.grid)}: {s.reason}" for s in self.stacks if s.blocks))
            raise NothingMergedError(
                f"nothing was merged at this image size ({reasons}). Use a larger image, lower min_tokens, or remove "
                f"merging with handle.remove()."
            )

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


def _take(args: Args, kwargs: Kwargs) -> tuple[Tensor, Any]:
    """The tokens of a call, and how to put others in their place."""
    if args:
        return args[0], lambda tokens, kwargs: ((tokens, *args[1:]), kwargs)
    return kwargs["hidden_states"], lambda tokens, kwargs: ((), {**kwargs, "hidden_states": tokens})


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    return next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)).device


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


def _by(grid: tuple[int, ...] | None) -> str:
    return " x ".join(map(str, grid or ()))
