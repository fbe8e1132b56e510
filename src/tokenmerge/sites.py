"""Hooks: plain PyTorch forward hooks that put operators into a model.

Four kinds, from the outside in: the root model (which step is it?), the owner of a stack (which grid is it?), a block
(refresh the plan; merge here under scope "block" and "stack"), a part of a block (merge here under scope "site").
All are bound methods of plain objects, so deepcopy copies them with the model and save_pretrained never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.config import CannotMerge, Layout, Operators, Place
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.hooked import (
    Args,
    Kwargs,
    Pieces,
    argument_names,
    given_argument,
    joined,
    outside_compile,
    tokens_of,
    with_argument,
    with_changed,
    with_tokens,
)
from tokenmerge.models.base import Block, Part, Stack, chosen_parts
from tokenmerge.ops.regions import Regions
from tokenmerge.part_site import PartSite
from tokenmerge.plan import GroupPlan

if TYPE_CHECKING:
    from tokenmerge.root import RootSite


class BlockSite:
    """Refreshes the plan where it is due; under scope "block" and "stack" also merges for the whole block."""

    def __init__(self, block: Block, stack: StackSite, index: int, count: int) -> None:
        self.block = block
        self.stack = stack
        self.index = index
        self.count = count
        self.parts = [PartSite(part, self) for part in chosen_parts(block.parts, stack.root.config.parts)]
        self.first_of_run = self.last_of_run = True  # among neighbours that are all merged
        self.active = False
        self.place = Place(block.name, index, count)
        self.group = GroupPlan()
        self._arguments: tuple[str, ...] = ()
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        self._arguments = argument_names(self.block.module)
        self._handles = [
            self.block.module.register_forward_pre_hook(self.enter, with_kwargs=True),
            self.block.module.register_forward_hook(self.leave),
        ]
        for part in self.parts:
            part.attach()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for part in self.parts:
            part.detach()

    @property
    def operators(self) -> Operators:
        operators = self.group.current.operators
        assert operators is not None, "a block refreshes its plan before its parts run"
        return operators

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active:
            return None
        stack = self.stack
        scope = stack.root.config.scope
        begins = self.first_of_run or stack.apart
        tokens = tokens_of(args, kwargs)
        if stack.reorders and begins:
            before, grid, behind = stack.pieces(tokens, stack.tokens)
            tokens = joined(before, stack.regions.gather(grid), behind)
        if scope != "stack" or begins:
            self._refresh(tokens)
            if scope != "site":
                tokens = self._merge(tokens)
        args, kwargs = self._place_rotary(args, kwargs)
        return with_tokens(args, kwargs, tokens)

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        if not self.active:
            return None
        stack = self.stack
        ends = self.last_of_run or stack.apart
        scope = stack.root.config.scope
        unmerges = scope == "block" or (scope == "stack" and ends)
        if not unmerges and not (ends and stack.reorders):
            return None

        def restored(tokens: Tensor) -> Tensor:
            before, grid, behind = stack.pieces(tokens, stack.kept if unmerges else stack.tokens)
            if unmerges:
                grid = self._unmerge(grid)
            if ends and stack.reorders:
                grid = stack.regions.scatter(grid)
            return joined(before, grid, behind)

        return with_changed(output, (self.block.output,), restored)

    def _refresh(self, tokens: Tensor) -> None:
        due = self.group.current
        if not (due.select_due or due.weights_due):
            return
        stack = self.stack
        previous = None if due.select_due else due.operators
        assert stack.layout is not None
        grid_tokens = stack.pieces(tokens, stack.tokens)[1]
        due.operators = stack.root.config.plan(grid_tokens, stack.layout, self.place, previous)
        if not torch.compiler.is_compiling():
            stack.root.count_refresh(selected=previous is None)
        due.select_due = due.weights_due = False

    def _merge(self, tokens: Tensor) -> Tensor:
        queries = self.operators.queries
        assert queries is not None
        before, grid, behind = self.stack.pieces(tokens, self.stack.tokens)
        merged = queries.merge(grid)
        # Kept until the run ends, so that what merging blurred stays sharp: x + U(T(Mx) - Mx).
        self.stack.entered = grid, merged
        tokens = joined(before, merged, behind)
        if not torch.compiler.is_compiling():
            for part in self.parts:
                part.seen = tokens.shape[1]
        return tokens

    def _unmerge(self, output: Tensor) -> Tensor:
        queries = self.operators.queries
        assert queries is not None
        assert self.stack.entered is not None
        tokens, merged = self.stack.entered
        self.stack.entered = None
        return tokens + queries.unmerge(output - merged)

    def _place_rotary(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Bring the position embeddings into the order of the tokens, and to those that are left."""
        rotary = self.block.rotary
        stack = self.stack
        merges = stack.root.config.scope != "site"
        if rotary is None or not (merges or stack.reorders):
            return args, kwargs
        rows = given_argument(self._arguments, args, kwargs, rotary.argument)
        if stack.reorders:
            rows = self._rows_at(rows, stack.regions.order)
        if merges:
            rows = self.placed(rows)
        return with_argument(self._arguments, args, kwargs, rotary.argument, rows)

    def placed(self, rows: Any) -> Any:
        """Position embeddings of the tokens that are left."""
        queries = self.operators.queries
        if queries is None or self.block.rotary is None:
            return rows
        if queries.destinations is None:
            raise MergeRuntimeError(
                f"{type(self.stack.root.config).__name__} keeps tokens that sit nowhere on the grid, which a model "
                f"with rotary position embeddings cannot use: choose ToMA."
            )
        return self._rows_at(rows, queries.destinations if self.block.rotary.per_sample else queries.destinations[0])

    def _rows_at(self, rows: Any, places: Tensor) -> Any:
        """Rows of the grid's tokens at `places`, (M,) or (B, M), with those behind the grid as they are."""
        if rows is None or self.block.rotary is None:
            return rows
        tokens, trailing = self.stack.tokens, self.stack.trailing
        if trailing:
            behind = torch.arange(tokens, tokens + trailing, device=places.device)
            places = torch.cat([places, behind.expand(*places.shape[:-1], trailing)], dim=-1)
        return self.block.rotary.at(rows, places, tokens + trailing)


class StackSite:
    """Learns the grid of its blocks and decides, once per grid, what becomes of them."""

    def __init__(self, stack: Stack, root: RootSite) -> None:
        self.stack = stack
        self.root = root
        self.blocks: list[BlockSite] = []  # those not skipped
        self.grid: tuple[int, ...] | None = None
        self.reason = "not called yet"  # why nothing is merged here, where nothing is
        self.entered: tuple[Tensor, Tensor] | None = None  # a run's tokens before and after merging
        self.layout: Layout | None = None
        self.tokens = self.kept = self.kept_keys = self.trailing = 0
        self.reorders = False
        self.apart = False  # each block gives back all its tokens, because it cannot count on its neighbours
        self._settled_for: Hashable = None
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        self._handles = [self.stack.owner.register_forward_pre_hook(self.enter, with_kwargs=True)]
        for block in self.blocks:
            block.attach()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for block in self.blocks:
            block.detach()

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        grid = self.stack.grid(args, kwargs)
        self.trailing = self.stack.trailing(args, kwargs)
        device = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)).device
        # A checkpointed block runs again in the backward pass, by itself.
        checkpointed = torch.is_grad_enabled() and getattr(self.stack.owner, "gradient_checkpointing", False)
        self.apart = self.root.interleaved or checkpointed
        settled_for = grid, device, self.root.positional, self.root.fixed_order, self.apart
        if settled_for != self._settled_for:
            self._settle(grid, device)
            self._settled_for = settled_for

    @outside_compile
    def _settle(self, grid: tuple[int, ...], device: torch.device) -> None:
        """Fix everything that depends on the grid alone."""
        fixed_order = self.stack.fixed_order or self.root.fixed_order
        if self.root.positional:
            kinds = ", ".join(self.root.positional)
            fixed_order = f"this call looks tokens up by position in {kinds}-attention (IP-Adapter masks do)"
        self.grid = grid
        self.tokens = math.prod(grid)
        self.layout, self.reason = self._layout(grid)
        if fixed_order and self.root.config.scope != "site" and self.layout is not None:
            raise MergeRuntimeError(f"{fixed_order}, which merging whole blocks cannot follow: use scope='site'.")
        regions = None if self.layout is None else self.layout.regions
        # A padded order is longer than the grid, so tokens cannot stay in it between parts.
        self.reorders = regions is not None and not (regions.natural or regions.padded or fixed_order)
        if self.layout is not None:
            self.kept, self.kept_keys = self.layout.kept, self.layout.kept_keys
            if self.kept != self.kept_keys and not self.root.config.keys_apart:
                raise ConfigError(
                    f"{type(self.root.config).__name__}.layout keeps {self.kept_keys} keys and {self.kept} other "
                    f"tokens, but its keys_apart is False: a method that merges keys apart has to say so."
                )
        if self.layout is not None and regions is not None:
            self.layout = self.layout.to(device)
            self.regions: Regions = regions.to(device)
        run = ""
        for block in self.blocks:
            run = block.block.name if block.first_of_run else run
            block.active = self.layout is not None
            block.place = Place(block.block.name, block.index, block.count, self.reorders, self.stack.one_for_batch)
            block.group = self.root.plan.group(self._group_key(block.block.name, run, grid))
            for part in block.parts:
                part.active = block.active and self._merges_in(part.part)

    def _layout(self, grid: tuple[int, ...]) -> tuple[Layout | None, str]:
        config = self.root.config
        if self.tokens < config.min_tokens:
            return None, f"{self.tokens} tokens, fewer than min_tokens={config.min_tokens}"
        try:
            return config.layout_at(grid, self.stack.downsample), ""
        except CannotMerge as reason:
            return None, str(reason)
        except ConfigError as error:
            raise ConfigError(f"{self.stack.name}: {error}") from None

    def _merges_in(self, part: Part) -> bool:
        assert self.layout is not None
        if set(part.kinds) & set(self.root.positional):
            return False
        only_keys = self.layout.kept == self.layout.tokens and self.layout.kept_keys < self.layout.tokens
        return part.own_keys or not only_keys

    def _group_key(self, block: str, run: str, grid: tuple[int, ...]) -> Hashable:
        share = self.root.config.share
        if share == "layer":
            # What is merged once for a run has one plan.
            return run if self.root.config.scope == "stack" and not self.apart else block
        # Blocks in region order and blocks in grid order cannot read each other's operators.
        where = self.stack.level if share == "level" else ""
        return where, grid, self.reorders

    def pieces(self, tokens: Tensor, count: int, text_last: bool = False) -> Pieces:
        """Tokens before those of the grid, the `count` of the grid, and those behind; None where there are none."""
        others = tokens.shape[1] - count
        if others == 0:
            return None, tokens, None
        behind = others if text_last else self.trailing
        pieces = torch.split(tokens, [others - behind, count, behind], dim=1)
        return pieces[0] if others > behind else None, pieces[1], pieces[2] if behind else None
