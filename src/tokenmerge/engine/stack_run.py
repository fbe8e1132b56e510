"""One stack of a model while it runs: finds its grid and looks its Program up."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenmerge.config.interfaces import Operators
from tokenmerge.config.keep import protected_tokens
from tokenmerge.engine.hooks import PlacedHook
from tokenmerge.engine.program import Program, StackCall, StackDescription
from tokenmerge.engine.resolve import resolve
from tokenmerge.engine.schedule import Kind
from tokenmerge.engine.stack_hooks import AnyCarrier, StackHooks
from tokenmerge.models.arguments import Args, Kwargs, named_arguments
from tokenmerge.models.base import Block
from tokenmerge.ops.compiling import outside_compile

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class StackRun:
    """One stack, and the hooks on its owner."""

    def __init__(self, described: StackDescription, session: Session) -> None:
        self.described = described
        self.stack = described.stack
        self.session = session
        self.call: StackCall | None = None
        self.program = Program((), reason="not called yet" if described.merging else "all blocks skipped")
        self.kind = Kind.MERGED
        self._programs: dict[Hashable, Program] = {}
        self._owner_hooks: list[PlacedHook] = []
        self.hooks = StackHooks(self.stack, session)  # inside it
        self._handed_for: tuple[Any, ...] = (None, None, None, None)

    # -- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Hook into the owner, unless that is the model itself, whose hooks are the session's."""
        if self.stack.owner is self.session.model or not self.described.merging:
            return
        self._owner_hooks = [PlacedHook(self.stack.owner, "", "before", self.enter_owner)]
        config = self.session.config
        if config.correction is not None or config.scope == "stack":  # else nothing is done where it ends
            # First: the hooks of others are to see all tokens.
            leaves = PlacedHook(self.stack.owner, "", "after", self.leave_owner, prepend=True, with_kwargs=True)
            self._owner_hooks.append(leaves)

    def detach(self) -> None:
        for hook in self._owner_hooks:
            hook.remove()
        self._owner_hooks.clear()
        self.hooks.clear()
        self._programs.clear()
        self.program, self.call = Program((), reason="not called yet"), None

    # -- a call -----------------------------------------------------------------------------------------------------

    def begin_call(self, kind: Kind) -> None:
        """Get ready for a call of this kind, on the grid of the last one. `enter_owner` sees if it is another."""
        self.kind = kind
        for span in self.hooks.spans:
            span.begin_call()
        # By identity, because this is asked at every step.
        if self.call is not None and not all(map(is_, self._asked_for(self.call), self._handed_for)):
            self._hand(self.call)

    def _asked_for(self, call: StackCall) -> tuple[Any, ...]:
        """What decides which row each span is to have."""
        return call, self.session.facts, self.kind, self._owner_wraps

    @property
    def _owner_wraps(self) -> bool:
        """Whether the owner can run on merged tokens: by its own forward, which no cache has replaced."""
        return bool(self.stack.norm) and "forward" not in vars(self.stack.owner)

    def enter_owner(self, owner: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.session.attached:  # compiled code goes on calling hooks that were removed
            return None
        self.read_owner(args, kwargs)
        if self.hooks.wrapping is not None:
            return self.hooks.wrapping.enter_transformer(owner, args, kwargs)
        changed = None
        for enter in self.hooks.owner_enters:
            result = enter(owner, args, kwargs)
            if result is not None:
                args, kwargs = changed = result
        return changed

    def read_owner(self, args: Args, kwargs: Kwargs) -> None:
        """Find the grid in what the owner is called with."""
        named = named_arguments(self.stack.owner, args, kwargs)
        grid, trailing = self.stack.grid((), named), self.stack.trailing((), named)
        starts = self.stack.starts((), named)
        references = self.stack.references((), named) if trailing and self.session.reference_ratio else ()
        device = next(value for value in named.values() if isinstance(value, Tensor)).device
        call = self.call
        isolated = torch.is_grad_enabled() and getattr(self.stack.owner, "gradient_checkpointing", False)
        # As tuples: torch.compile cannot compare a dataclass that holds a size it traces.
        found = grid, trailing, device, isolated, starts, references
        if call is None or found != (
            call.grid, call.trailing, call.device, call.isolated, call.starts, call.references,
        ):  # fmt: skip
            self._settle(StackCall(grid, trailing, device, isolated, starts=starts, references=references))

    @outside_compile
    def _settle(self, call: StackCall) -> None:
        self.call = None  # an error on the way leaves nothing settled
        self._hand(call)
        self.call = call

    def leave_owner(self, owner: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> Any:
        if not self.session.attached:
            return None
        wrapping = self.hooks.wrapping
        changed = None if wrapping is None else wrapping.exit_transformer(owner, output)
        if self.kind is Kind.CALIBRATE and not self.session.calibrating:
            self.session.calibrate(owner, args, kwargs, [self])
        return changed

    # -- programs ---------------------------------------------------------------------------------------------------

    def _hand(self, call: StackCall) -> None:
        """Give every span and hook its row for this call."""
        program = self._program(call, self.kind)
        self._handed_for = self._asked_for(call)
        if program is self.program:
            return
        kinds = (Kind.CALIBRATE, Kind.MERGED) if self.session.steps.policy.full_every else (Kind.MERGED,)
        # For all kinds, before anything is compiled: compiled code looks for hooks when it is made and never again.
        self.hooks.place([self._program(call, kind) for kind in kinds])
        self.program = program
        self.hooks.hand(program)
        if not self.session.compiled:
            self.hooks.show_full(self.kind is Kind.CALIBRATE)

    def _program(self, call: StackCall, kind: Kind) -> Program:
        session = self.session
        call = dataclasses.replace(call, wraps=self._owner_wraps)
        key = call, session.facts, kind
        if key not in self._programs:
            self._programs[key] = resolve(
                self.described, session.facts, call, kind, protected_tokens(session.keep, call.grid)
            )
        return self._programs[key]

    # -- what others ask --------------------------------------------------------------------------------------------

    def modules(self) -> list[nn.Module]:
        """The owner and every block."""
        return [self.stack.owner, *(block.module for block in self.stack.blocks)]

    def isolate(self) -> None:
        """Have every block merge by itself, as if something stood between blocks. For timing single blocks."""
        assert self.call is not None
        self._settle(dataclasses.replace(self.call, isolated=True))

    def rows_of(self, block: Block) -> list[tuple[AnyCarrier, Any]]:
        """What acts on a block at this call, each with its row."""
        found = [(carrier, carrier.row) for carrier in self.hooks.carriers.values()]
        return [(carrier, row) for carrier, row in found if row is not None and row.block is block]

    def operators_of(self, block: Block) -> Operators | None:
        """The operators that a block uses at this call; None where it merges nothing or they are not made yet."""
        if block.name not in self.program.blocks:
            return None
        # A run has one plan, made by its first block.
        rows = self.program.rows
        group = next((row.group for row in rows if row.block is block), rows[0].group if rows else None)
        return None if group is None else self.session.state.group(group).current.operators

    def forget_call(self) -> None:
        """Let go of tensors that the call's spans have kept."""
        for span in self.hooks.spans:
            span.forget_call()
