"""One stack of a model while it runs: finds its grid, looks its Program up, and hands each span its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenmerge.config.interfaces import Operators
from tokenmerge.config.keep import protected_tokens
from tokenmerge.engine.arguments import TokenArgument, token_argument
from tokenmerge.engine.attention import AttentionHook
from tokenmerge.engine.hooks import PlacedHook, When
from tokenmerge.engine.program import AttentionRow, Program, RotaryRow, SpanRow, StackCall, StackDescription
from tokenmerge.engine.resolve import resolve
from tokenmerge.engine.rotary import RotaryHook
from tokenmerge.engine.schedule import Kind
from tokenmerge.engine.span import Span
from tokenmerge.engine.state import Memory
from tokenmerge.models.arguments import Args, Kwargs, argument_names, named_arguments
from tokenmerge.models.base import Block
from tokenmerge.ops.compiling import outside_compile

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class StackRun:
    """The hooks of one stack. Spans and attention hooks are made when a Program first needs them."""

    def __init__(self, described: StackDescription, session: Session) -> None:
        self.described = described
        self.stack = described.stack
        self.session = session
        self.call: StackCall | None = None
        self.program = Program((), reason="not called yet" if described.merging else "all blocks skipped")
        self.kind = Kind.MERGED
        self._programs: dict[Hashable, Program] = {}
        self._spans: dict[Hashable, Span] = {}
        self._attentions: dict[str, AttentionHook] = {}
        self._rotaries: dict[str, RotaryHook] = {}
        self._owner_hooks: list[PlacedHook] = []
        self._hooks: list[PlacedHook] = []  # inside the stack
        self._owner_enters: list[Any] = []  # of a block that is the owner too
        self._wanted: list[tuple[nn.Module, str, When, Any, dict[str, Any]]] = []  # hooks that are to be placed
        self._full_hooks: list[PlacedHook] = []  # that act at full steps alone
        self._handed_for: tuple[Any, ...] = (None, None, None, None)
        self._wrapping: Span | None = None  # the span around the owner itself, where this call has one

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
        self._clear_hooks()
        self._programs.clear()
        self.program, self.call = Program((), reason="not called yet"), None

    def _clear_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for attention in self._attentions.values():
            attention.hand(None, attention.group, None)
        for span in self._spans.values():
            span.hand(None, span.group, {})
        for each in (self._hooks, self._full_hooks, self._owner_enters, self._spans, self._attentions, self._rotaries):
            each.clear()

    def follow_changes(self) -> None:
        """Hook into layers that have been replaced since the last call, as LoRA and quantisation do."""
        for hook in self._hooks:
            hook.follow()

    # -- a call -----------------------------------------------------------------------------------------------------

    def begin_call(self, kind: Kind) -> None:
        """Get ready for a call of this kind, on the grid of the last one. `enter_owner` sees if it is another."""
        self.kind = kind
        for span in self._spans.values():
            span.begin_call()
        if self.call is not None and not self._is_handed(self.call):
            self._hand()

    def _is_handed(self, call: StackCall) -> bool:
        """Whether every span has its row for this call already: by identity, because this is asked at every step."""
        handed, facts, kind, wraps = self._handed_for
        same = call is handed and self.session.facts is facts
        return same and self.kind is kind and self._owner_wraps is wraps

    def _asked_for(self, call: StackCall) -> tuple[Any, ...]:
        return call, self.session.facts, self.kind, self._owner_wraps

    @property
    def _owner_wraps(self) -> bool:
        """Whether the owner can run on merged tokens: by its own forward, which no cache has replaced."""
        return bool(self.stack.norm) and "forward" not in vars(self.stack.owner)

    def enter_owner(self, owner: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.session.attached:  # compiled code goes on calling hooks that were removed
            return None
        self.read_owner(args, kwargs)
        if self._wrapping is not None:
            return self._wrapping.enter_transformer(owner, args, kwargs)
        changed = None
        for enter in self._owner_enters:
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
        self._hand_for(call)
        self.call = call

    def leave_owner(self, owner: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> Any:
        if not self.session.attached:
            return None
        changed = None if self._wrapping is None else self._wrapping.exit_transformer(owner, output)
        if self.kind is Kind.CALIBRATE and not self.session.calibrating:
            self.session.calibrate(owner, args, kwargs, [self])
        return changed

    # -- programs ---------------------------------------------------------------------------------------------------

    @outside_compile
    def _hand(self) -> None:
        assert self.call is not None
        self._hand_for(self.call)

    def _hand_for(self, call: StackCall) -> None:
        """Give every span and hook its row for this call."""
        program = self._program(call, self.kind)
        self._handed_for = self._asked_for(call)
        if program is self.program:
            return
        kinds = (Kind.CALIBRATE, Kind.MERGED) if self.session.policy.full_every else (Kind.MERGED,)
        # For all kinds, before anything is compiled: compiled code looks for hooks when it is made and never again.
        self._place_hooks([self._program(call, kind) for kind in kinds])
        self.program = program
        self._wrapping = None
        self._hand_rows(program)
        if not self.session.compiled:
            for hook in self._full_hooks:
                (hook.show if self.kind is Kind.CALIBRATE else hook.hide)()

    def _program(self, call: StackCall, kind: Kind) -> Program:
        session = self.session
        call = dataclasses.replace(call, wraps=self._owner_wraps)
        key = call, session.facts, kind
        if key not in self._programs:
            self._programs[key] = resolve(
                self.described, session.facts, call, kind, protected_tokens(session.keep, call.grid)
            )
        return self._programs[key]

    def _hand_rows(self, program: Program) -> None:
        spans = {_key(row): row for row in program.spans}
        for key, span in self._spans.items():
            row = spans.get(key)
            if row is None:
                span.hand(None, span.group, {})
            else:
                span.hand(row, self.session.state.group(row.group), self._memories(row))
                self._wrapping = span if row.where == "transformer" else self._wrapping
        attentions = {row.name: row for row in program.attentions}
        for name, attention in self._attentions.items():
            self._hand_attention(attention, attentions.get(name))
        rotaries = {row.block.name: row for row in program.rotaries}
        for name, rotary in self._rotaries.items():
            moved = rotaries.get(name)
            rotary.hand(moved, rotary.group if moved is None else self.session.state.group(moved.group))

    def _hand_attention(self, attention: AttentionHook, row: AttentionRow | None) -> None:
        if row is None:
            attention.hand(None, attention.group, None)
            return
        memory = None
        if row.corrected and (row.records or row.asks):
            key = "inside", row.name, row.layout.kept
            memory = self._memory(key, row.reordered, outlasts=False)
        attention.hand(row, self.session.state.group(row.group), memory)

    def _memories(self, row: SpanRow) -> dict[int, Memory]:
        if not row.corrected:
            return {}
        positions = (0,) if row.part is None else row.part.outputs
        if row.part is None and row.last.output is not None:
            positions = (row.last.output,)
        name = row.first.name if row.part is None else row.first.path(row.part)
        reordered, outlasts = row.context.in_region_order, row.layout.fixed
        # Errors of one ratio are not those of another.
        keys = {position: (row.where, name, position, row.layout.kept) for position in positions}
        return {position: self._memory(key, reordered, outlasts) for position, key in keys.items()}

    def _memory(self, key: Hashable, reordered: bool, outlasts: bool) -> Memory:
        memory = self.session.state.memory(key)
        memory.set_order(reordered)
        memory.outlasts_plans = outlasts
        correction = self.session.config.correction
        memory.offloads = correction is not None and correction.offload
        return memory

    # -- hooks of a program -----------------------------------------------------------------------------------------

    def _place_hooks(self, programs: list[Program]) -> None:
        """Have hooks where the programs act and nowhere else. Spans come before what reads their operators."""
        spans = {_key(row): row for program in programs for row in program.spans}
        rotaries = {row.block.name: row for program in programs for row in program.rotaries}
        attentions = {row.name: row for program in programs for row in program.attentions}
        placed: list[dict[Any, Any]] = [self._spans, self._rotaries, self._attentions]
        needed: list[dict[Any, Any]] = [spans, rotaries, attentions]
        if all(keys.keys() <= there.keys() for keys, there in zip(needed, placed, strict=True)):
            return
        if self.session.compiled and any(placed):
            torch.compiler.reset()  # what was compiled has the hooks that go now
        self._clear_hooks()
        self._spans = {key: self._new_span(row) for key, row in spans.items()}
        self._rotaries = {name: self._new_rotary(row) for name, row in rotaries.items()}
        self._attentions = {name: self._new_attention(row) for name, row in attentions.items()}
        full_only = [self._attentions[name].attend for name, row in attentions.items() if row.subset is not None]
        wanted, self._wanted = self._wanted, []
        # Each comes to stand in front of those before it. Spans begin before what is inside them, and end after it.
        before, after = ([hook for hook in wanted if hook[2] == when] for when in ("before", "after"))
        for owner, path, when, function, options in (*reversed(before), *after):
            if when == "before" and owner is self.stack.owner and not path:
                # PyTorch would not call it in this call, in which the owner's hook has just found the grid.
                self._owner_enters.insert(0, function)
                continue
            hook = PlacedHook(owner, path, when, function, **{"prepend": True, **options})
            self._hooks.append(hook)
            if function in full_only:
                self._full_hooks.append(hook)

    def _place(self, owner: nn.Module, path: str, when: When, function: Any, **options: Any) -> None:
        # In front: whoever else has a hook there sees merged tokens going in and all tokens coming out.
        self._wanted.append((owner, path, when, function, options))

    def _new_span(self, row: SpanRow) -> Span:
        block, part = row.first.module, row.part
        if row.where == "transformer":
            argument = TokenArgument(argument_names(self.stack.owner))
            span = Span(self.session, self.stack.name, argument, argument)
            self._place(self.stack.owner, self.stack.norm, "before", span.give_norm_the_image)
            # Behind others: they see what the norm gave of the whole image.
            self._place(self.stack.owner, self.stack.norm, "after", span.merge_behind_norm, prepend=False)
            return span
        path = "" if part is None else part.module
        argument = token_argument(row.first, part)
        last = row.last
        form = last.form_of(part)
        leaves = TokenArgument(channels_first=form.channels_first, tokens_first=form.tokens_first)
        span = Span(self.session, row.first.name if part is None else row.first.path(part), argument, leaves)
        if part is None or part.enters_at == "input":
            self._place(block, path, "before", span.enter_argument)
        else:
            self._place(block, path, "after", span.enter_output)
        if row.ends:
            leaves_at = "" if part is None else part.leaves or path
            self._place(row.last.module, leaves_at, "after", span.exit_output)
        return span

    def _new_rotary(self, row: RotaryRow) -> RotaryHook:
        rotary = RotaryHook(self.session, row.block.module)
        self._place(row.block.module, "", "before", rotary.move)
        return rotary

    def _new_attention(self, row: AttentionRow) -> AttentionHook:
        block, part = row.block, row.part
        path = part.attention_path
        # An attention that the part does not begin with takes its tokens first.
        module = block.module.get_submodule(path)
        own = TokenArgument(argument_names(module))
        begins = part if part.attention is None else None
        argument = own if part.attention else token_argument(block, begins)
        attention = AttentionHook(self.session, row.name, argument, module)
        self._place(block.module, path, "before", attention.attend)
        if row.acts_inside:
            self._place(block.module, path, "after", attention.attended, always_call=True)
        return attention

    def modules(self) -> list[nn.Module]:
        """The owner and every block."""
        return [self.stack.owner, *(block.module for block in self.stack.blocks)]

    def isolate(self) -> None:
        """Have every block merge by itself, as if something stood between blocks. For timing single blocks."""
        assert self.call is not None
        self._settle(dataclasses.replace(self.call, isolated=True))

    def rows_of(self, block: Block) -> list[tuple[Span | AttentionHook | RotaryHook, Any]]:
        """What acts on a block at this call, each with its row."""
        carriers: list[Any] = [*self._spans.values(), *self._attentions.values(), *self._rotaries.values()]
        acting = [carrier for carrier in carriers if carrier.row is not None]
        return [(carrier, carrier.row) for carrier in acting if _block_of(carrier.row) is block]

    def operators_of(self, block: Block) -> Operators | None:
        """The operators that a block uses at this call; None where it merges nothing or they are not made yet."""
        if block.name not in self.program.blocks:
            return None
        rows: list[Any] = [*self.program.spans, *self.program.attentions]
        # A run has one plan, made by its first block.
        groups = {_block_of(row).name: row.group for row in (*self.program.rotaries, *rows)}
        group = groups.get(block.name, rows[0].group if rows else None)
        return None if group is None else self.session.state.group(group).current.operators

    def forget_call(self) -> None:
        """Let go of tensors that the call's spans have kept."""
        for span in self._spans.values():
            span.forget_call()


def _block_of(row: SpanRow | AttentionRow | RotaryRow) -> Block:
    return row.first if isinstance(row, SpanRow) else row.block


def _key(row: SpanRow) -> Hashable:
    return row.where, row.first.name, row.last.name, None if row.part is None else row.part.module, row.ends
