"""The hooks on a block: refresh the plan where it is due; merge here under scope "block" and "stack"."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.engine.detail import remember, unmerged
from tokenmerge.engine.hooked import (
    Args,
    Kwargs,
    argument_names,
    given_argument,
    joined,
    tokens_of,
    with_argument,
    with_changed,
    with_tokens,
)
from tokenmerge.engine.part_site import PartSite
from tokenmerge.engine.plan import GroupPlan, Memory
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.methods.interfaces import Layout, Operators, Place
from tokenmerge.models.base import Block, chosen_parts

if TYPE_CHECKING:
    from tokenmerge.engine.stack_site import StackSite


class BlockSite:
    """Refreshes the plan where it is due; under scope "block" and "stack" also merges for the whole block."""

    def __init__(self, block: Block, stack: StackSite, index: int, count: int) -> None:
        self.block = block
        self.stack = stack
        self.index = index
        self.count = count
        config = stack.root.config
        parts = chosen_parts(block.parts, config.parts, config.keys_of_all)
        self.parts = [PartSite(part, self) for part in parts]
        self.before: BlockSite | None = None  # the block right before it, where that is not skipped
        self.first_of_run = self.last_of_run = True  # among neighbours that are all merged
        self.active = False
        self.lends = False  # this step runs whole, and what it gives is remembered
        self.layout: Layout | None = None
        self.place = Place(block.name, index, count)
        self.group = GroupPlan()
        self.run_first = self  # the block at which its run begins
        self.detail: Memory | None = None  # of the run that begins here
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
    def kept(self) -> int:
        assert self.layout is not None
        return self.layout.kept

    @property
    def kept_keys(self) -> int:
        assert self.layout is not None
        return self.layout.kept_keys

    @property
    def keys_of_all(self) -> bool:
        """Does its self-attention take keys of all tokens, whatever its queries are made of?"""
        config = self.stack.root.config
        apart = config.keys_of_all or any(part.own_keys for part in self.block.parts)
        return config.scope == "site" and apart

    @property
    def even(self) -> bool:
        assert self.layout is not None
        return self.layout.even

    @property
    def operators(self) -> Operators:
        operators = self.group.current.operators
        assert operators is not None, "a block refreshes its plan before its parts run"
        return operators

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active and not self.lends:
            return None
        stack = self.stack
        scope = stack.root.config.scope
        begins = self.first_of_run or stack.apart
        tokens = tokens_of(args, kwargs)
        self._refuse_too_few(tokens)
        if stack.around:
            stack.around_site.refuse_unmerged()
            return None
        if self.lends:
            if scope == "block" or (scope == "stack" and begins):
                stack.entered_whole = stack.pieces(tokens, stack.tokens)[1]
            return None
        if stack.reorders and begins:
            before, grid, behind = stack.pieces(tokens, stack.tokens)
            tokens = joined(before, stack.regions.gather(grid), behind)
        if scope != "stack" or begins:
            if self.refresh_due:
                self.refresh(stack.pieces(tokens, stack.tokens)[1])
            if scope != "site":
                tokens = self._merge(tokens)
        args, kwargs = self._place_rotary(args, kwargs)
        return with_tokens(args, kwargs, tokens)

    def _refuse_too_few(self, tokens: Tensor) -> None:
        samples = self.stack.root.batch
        if tokens.shape[0] != samples:
            raise MergeRuntimeError(
                f"{self.block.name} was given {tokens.shape[0]} of the {samples} samples of its call, and its plan is "
                f"for all of them. FasterCache does so where guidance doubles the batch: switch it off with "
                f"disable_cache(), or take merging out with handle.remove()."
            )

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        if self.stack.around or not (self.active or self.lends):
            return None
        stack = self.stack
        ends = self.last_of_run or stack.apart
        scope = stack.root.config.scope
        unmerges = scope == "block" or (scope == "stack" and ends)
        if self.lends:
            if unmerges:
                with_changed(output, (self.block.output,), self._remember_whole)
            return None
        if not unmerges and not (ends and stack.reorders):
            return None

        def restored(tokens: Tensor, _: int) -> Tensor:
            before, grid, behind = stack.pieces(tokens, self.kept if unmerges else stack.tokens)
            if unmerges:
                grid = self._unmerge(grid)
            if ends and stack.reorders:
                grid = stack.regions.scatter(grid)
            return joined(before, grid, behind)

        return with_changed(output, (self.block.output,), restored)

    @property
    def refresh_due(self) -> bool:
        return self.group.current.select_due or self.group.current.weights_due

    def refresh(self, tokens: Tensor) -> None:
        """Make what is due: new destinations, or new weights for those there are."""
        due = self.group.current
        root = self.stack.root
        previous = None if due.select_due else due.operators
        assert self.layout is not None
        at = self.place
        place = Place(
            at.name,
            at.index,
            at.count,
            at.in_region_order,
            at.one_for_batch,
            at.keys_of_all,
            at.averages,
            root.draw,
        )
        with _in_full_precision(tokens.device):
            due.operators = root.config.plan(tokens, self.layout, place, previous)
        if not torch.compiler.is_compiling() and not at.averages:
            root.count_refresh(selected=previous is None)
        due.select_due = due.weights_due = False

    def merge_whole(self, grid: Tensor) -> Tensor:
        """Merge the grid's tokens for the whole stack that begins here, with a new plan where that is due."""
        if self.refresh_due:
            self.refresh(grid)
        queries = self.operators.queries
        assert queries is not None
        merged = queries.merge(grid)
        self._note_seen(merged)
        return merged

    def _note_seen(self, tokens: Tensor) -> None:
        if not torch.compiler.is_compiling():
            for part in self.parts:
                part.seen = tokens.shape[1]

    def _merge(self, tokens: Tensor) -> Tensor:
        queries = self.operators.queries
        assert queries is not None
        before, grid, behind = self.stack.pieces(tokens, self.stack.tokens)
        merged = queries.merge(grid)
        # Kept until the run ends, so that what merging blurred stays sharp: x + U(T(Mx) - Mx).
        self.stack.entered = grid, merged
        tokens = joined(before, merged, behind)
        self._note_seen(tokens)
        return tokens

    def _unmerge(self, output: Tensor) -> Tensor:
        queries = self.operators.queries
        assert queries is not None
        assert self.stack.entered is not None
        tokens, merged = self.stack.entered
        self.stack.entered = None
        return tokens + unmerged(queries, output - merged, self._run_detail)

    @property
    def _run_detail(self) -> Memory | None:
        together = self.stack.root.config.scope == "stack" and not self.stack.apart
        return self.run_first.detail if together else self.detail

    def _remember_whole(self, tokens: Tensor, _: int) -> Tensor:
        """What the run that ends here has added to its tokens."""
        stack = self.stack
        assert stack.entered_whole is not None
        assert self._run_detail is not None
        added = stack.pieces(tokens, stack.tokens)[1] - stack.entered_whole
        stack.entered_whole = None
        remember(self._run_detail, stack.in_order(added))
        return tokens

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


def _in_full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Similarities are too close to each other for half precision, into which autocast would bring them."""
    if not torch.amp.is_autocast_available(device.type):  # the meta device has none
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
