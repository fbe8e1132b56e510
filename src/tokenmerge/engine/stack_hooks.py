"""The hooks inside a stack: they stand where its Programs act and nowhere else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from tokenmerge.engine.arguments import TokenArgument, token_argument
from tokenmerge.engine.attention import AttentionHook
from tokenmerge.engine.hooks import PlacedHook, When
from tokenmerge.engine.program import AnyRow, AttentionRow, Program, RotaryRow, SpanRow
from tokenmerge.engine.rotary import RotaryHook
from tokenmerge.engine.span import Span
from tokenmerge.engine.state import Memory
from tokenmerge.models.arguments import argument_names
from tokenmerge.models.base import Stack

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session

AnyCarrier = Span | RotaryHook | AttentionHook


class _Wanted(NamedTuple):
    """A hook that is to be placed."""

    owner: nn.Module
    path: str
    when: When
    function: Any
    full_only: bool = False  # it acts at full steps alone
    options: dict[str, Any] | None = None


class StackHooks:
    """What carries out the rows of a stack's Programs, and its hooks. Made when a Program first needs them."""

    def __init__(self, stack: Stack, session: Session) -> None:
        self.stack, self.session = stack, session
        self.carriers: dict[Hashable, AnyCarrier] = {}
        self.spans: list[Span] = []
        self.wrapping: Span | None = None  # the span around the owner itself, where this call has one
        self.owner_enters: list[Any] = []  # of a block that is the owner too
        self._placed: list[PlacedHook] = []
        self._full: list[PlacedHook] = []  # that act at full steps alone

    def clear(self) -> None:
        for hook in self._placed:
            hook.remove()
        for carrier in self.carriers.values():
            self._hand(carrier, None)
        for each in (self.carriers, self.spans, self.owner_enters, self._placed, self._full):
            each.clear()
        self.wrapping = None

    def follow_changes(self) -> None:
        """Hook into layers that have been replaced since the last call, as LoRA and quantisation do."""
        for hook in self._placed:
            hook.follow()

    # -- rows -------------------------------------------------------------------------------------------------------

    def hand(self, program: Program) -> None:
        """Give everything its row, or none."""
        rows = {row.key: row for row in program.rows}
        self.wrapping = None
        for key, carrier in self.carriers.items():
            row = rows.get(key)
            self._hand(carrier, row)
            if isinstance(carrier, Span) and carrier.row is not None and carrier.row.where == "transformer":
                self.wrapping = carrier

    def _hand(self, carrier: Any, row: AnyRow | None) -> None:
        if row is None:
            carrier.hand(None, carrier.group, {})
            return
        memories = {position: self._memory(key, row) for position, key in row.memory_keys.items()}
        carrier.hand(row, self.session.state.group(row.group), memories)

    def _memory(self, key: Hashable, row: AnyRow) -> Memory:
        memory = self.session.state.memory(key)
        memory.set_order(row.reordered)
        memory.outlasts_plans = row.memory_outlasts_plans
        correction = self.session.config.correction
        memory.offloads = correction is not None and correction.offload
        return memory

    def show_full(self, full: bool) -> None:
        """Have hooks that act at full steps alone there, or not."""
        for hook in self._full:
            (hook.show if full else hook.hide)()

    # -- hooks ------------------------------------------------------------------------------------------------------

    def place(self, programs: Sequence[Program]) -> None:
        """Have hooks for all rows of these programs."""
        # Spans first: hooks on what is inside them come to stand behind theirs.
        order: tuple[type[AnyRow], ...] = (SpanRow, RotaryRow, AttentionRow)
        rows = [row for kind in order for program in programs for row in program.rows if isinstance(row, kind)]
        needed = {row.key: row for row in rows}
        if needed.keys() <= self.carriers.keys():
            return
        if self.session.compiled and self.carriers:
            torch.compiler.reset()  # what was compiled has the hooks that go now
        self.clear()
        wanted: list[_Wanted] = []
        for key, row in needed.items():
            self.carriers[key], hooks = self._new(row)
            wanted += hooks
        self.spans = [carrier for carrier in self.carriers.values() if isinstance(carrier, Span)]
        # Each comes to stand in front of those before it. Spans begin before what is inside them, and end after it.
        before, after = ([hook for hook in wanted if hook.when == when] for when in ("before", "after"))
        for hook in (*reversed(before), *after):
            if hook.when == "before" and hook.owner is self.stack.owner and not hook.path:
                # PyTorch would not call it in this call, in which the owner's hook has just found the grid.
                self.owner_enters.insert(0, hook.function)
                continue
            # In front: whoever else has a hook there sees merged tokens going in and all tokens coming out.
            placed = PlacedHook(
                hook.owner, hook.path, hook.when, hook.function, **{"prepend": True, **(hook.options or {})}
            )
            self._placed.append(placed)
            if hook.full_only:
                self._full.append(placed)

    def _new(self, row: AnyRow) -> tuple[AnyCarrier, list[_Wanted]]:
        if isinstance(row, SpanRow):
            return self._new_span(row) if row.where != "transformer" else self._new_wrapping()
        block = row.block.module
        if isinstance(row, RotaryRow):
            rotary = RotaryHook(self.session, row.block.name, argument_names(block))
            return rotary, [_Wanted(block, "", "before", rotary.move)]
        path = row.part.attention_path
        # An attention that the part does not begin with takes its tokens first.
        module = block.get_submodule(path)
        begins = row.part if row.part.attention is None else None
        argument = TokenArgument(argument_names(module)) if row.part.attention else token_argument(row.block, begins)
        attention = AttentionHook(self.session, row.name, argument, module)
        hooks = [_Wanted(block, path, "before", attention.attend, full_only=row.subset is not None)]
        if row.acts_inside:
            hooks.append(_Wanted(block, path, "after", attention.attended, options={"always_call": True}))
        return attention, hooks

    def _new_span(self, row: SpanRow) -> tuple[Span, list[_Wanted]]:
        part = row.part
        path = "" if part is None else part.module
        form = row.last.form_of(part)
        leaves = TokenArgument(channels_first=form.channels_first, tokens_first=form.tokens_first)
        span = Span(self.session, row.name, token_argument(row.first, part), leaves)
        if part is None or part.enters_at == "input":
            hooks = [_Wanted(row.first.module, path, "before", span.enter_argument)]
        else:
            hooks = [_Wanted(row.first.module, path, "after", span.enter_output)]
        if row.ends:
            leaves_at = path if part is None else part.leaves or path
            hooks.append(_Wanted(row.last.module, leaves_at, "after", span.exit_output))
        return span, hooks

    def _new_wrapping(self) -> tuple[Span, list[_Wanted]]:
        owner, norm = self.stack.owner, self.stack.norm
        argument = TokenArgument(argument_names(owner))
        span = Span(self.session, self.stack.name, argument, argument)
        return span, [
            _Wanted(owner, norm, "before", span.give_norm_the_image),
            # Behind others: they see what the norm gave of the whole image.
            _Wanted(owner, norm, "after", span.merge_behind_norm, options={"prepend": False}),
        ]
