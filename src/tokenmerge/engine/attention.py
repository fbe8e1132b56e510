"""Hooks on attention modules and position embeddings: what merged keys stand for, where they are, which are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokenmerge.config.interfaces import Layout
from tokenmerge.engine.arguments import TokenArgument, joined, split_pieces
from tokenmerge.engine.compatibility import refuse_perturbed
from tokenmerge.engine.correction import record_full, unmerge_corrected
from tokenmerge.engine.inner import Asked, InnerAttention
from tokenmerge.engine.program import AttentionRow, RotaryRow
from tokenmerge.engine.span import refuse_image_mask
from tokenmerge.engine.state import Group, Memory
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.arguments import Args, Kwargs, argument_names, given_argument, with_argument
from tokenmerge.models.base import Block

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class AttentionHook:
    """Carries out one row at one attention module. Without a row it does nothing."""

    def __init__(self, session: Session, argument: TokenArgument) -> None:
        """argument: how the attention is given tokens; read before, because torch.compile cannot follow `inspect`."""
        self.session = session
        self.row: AttentionRow | None = None
        self.group = Group()
        self.memory: Memory | None = None
        self._argument, self._names = argument, argument.names
        self._inner: InnerAttention | None = None  # entered while the attention runs

    def hand(self, row: AttentionRow | None, group: Group, memory: Memory | None) -> None:
        self.row, self.group, self.memory = row, group, memory
        self.forget_interrupted()

    def attend(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Hand the attention what its merged tokens stand for, and where they are."""
        row = self.row
        if row is None:
            return None
        self.forget_interrupted()
        if row.subset is not None:
            context = self._argument.read(args, kwargs).index_select(1, row.subset)
            return with_argument(self._names, args, kwargs, row.part.context_argument, context)
        if row.records:
            self._enter_inner(row, args, kwargs, asked=Asked(None, self._record_answers))
            return None
        return self._attend_merged(row, module, args, kwargs)

    def _attend_merged(self, row: AttentionRow, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        names = self._names
        if row.given == row.layout.tokens and not torch.compiler.is_compiling():
            # No span merges before it, so it says how many queries it was asked.
            self.session.noted[row] = self._argument.read(args, kwargs).shape[1] - row.given + row.layout.kept
        if row.moves_rotary:
            assert row.block.rotary is not None
            name = row.block.rotary.attention_argument or row.block.rotary.argument
            args, kwargs = with_moved(names, args, kwargs, name, self.group, "rotary", partial(self._moved, row))
        # A mask over text alone stays: the attention itself goes on to the image.
        of_text = row.part.text_mask or "self" not in row.part.kinds
        given = None if of_text else given_argument(names, args, kwargs, row.part.mask_argument)
        mask = self._mask(row, given, args, kwargs)
        read = self._read(row, args, kwargs)
        asked = self._asked(row, args, kwargs)
        fewer = read is not None or asked is not None
        if mask is not None or fewer:
            refuse_perturbed(row.name, module)
        if fewer or (mask is not None and row.part.mask == "inside"):
            self._enter_inner(row, args, kwargs, read, mask, asked)
            # One that was given (Qwen-Image's is, in diffusers before 0.39) is in ours, and as long as all tokens.
            ours = mask is not None and given is not None
            return with_argument(names, args, kwargs, row.part.mask_argument, None) if ours else (args, kwargs)
        return (args, kwargs) if mask is None else with_argument(names, args, kwargs, row.part.mask_argument, mask)

    def attended(self, module: nn.Module, args: Args, output: Any) -> None:
        """Called even if the attention fails, so that what it was to read never reaches another."""
        inner, self._inner = self._inner, None
        if inner is None:
            return
        inner.leave()
        if output is not None and not inner.used:
            assert self.row is not None
            raise MergeRuntimeError(
                f"{self.row.block.name} does not use PyTorch's scaled_dot_product_attention, so its keys can neither "
                f"be weighted by what they stand for nor sampled: use the native attention backend, or "
                f"proportional=False and keys='merged'."
            )

    def forget_interrupted(self) -> None:
        """Leave what an interrupt has left entered."""
        if self._inner is not None:
            self._inner.leave_late()
            self._inner = None

    @property
    def _operators(self) -> Any:
        operators = self.group.current.operators
        if operators is None:
            assert self.row is not None
            raise MergeRuntimeError(
                f"{self.row.block.name} was called before its tokens were merged: a module before it was left out, or "
                f"something answers in its place. Take that out, or use scope='block' or 'site'."
            )
        return operators

    def _enter_inner(
        self,
        row: AttentionRow,
        args: Args,
        kwargs: Kwargs,
        read: Tensor | None = None,
        mask: Tensor | None = None,
        asked: Asked | None = None,
    ) -> None:
        before, behind = self._other_keys(row, args, kwargs)
        self._inner = InnerAttention(
            self._argument.given(args, kwargs),
            before + row.given + behind,
            read,
            mask,
            asked,
            before=before,
            alone=row.given + row.trailing,
            cached=row.part.cached_keys,
        )
        self._inner.enter()

    def _read(self, row: AttentionRow, args: Args, kwargs: Kwargs) -> Tensor | None:
        """(B, K) which keys of its sequence the attention reads; None where it reads all."""
        if not row.reads:
            return None
        keys = self._operators.keys
        if keys.destinations is None:
            raise MergeRuntimeError(
                f"this model computes queries and keys from the same tokens, so keys can only be sampled, not "
                f"averaged, and {type(self.session.config).__name__} averages them: use SampledKeys or ToDo."
            )
        return self._in_sequence(row, keys.destinations, args, kwargs)

    def _asked(self, row: AttentionRow, args: Args, kwargs: Kwargs) -> Asked | None:
        """Which queries of its sequence the attention is asked; None where it is asked all that it is given."""
        if not row.asks:
            return None
        queries = self._operators.queries

        def spread(answers: Tensor) -> Tensor:
            text_last = row.part.text == "last"
            before, grid, behind = split_pieces(answers, row.layout.kept, row.trailing, text_last)
            grid = unmerge_corrected(queries, grid, self.memory)
            return joined(before, grid, behind) if row.placement is None else row.placement.joined(before, grid)

        return Asked(self._in_sequence(row, queries.destinations, args, kwargs), spread)

    def _record_answers(self, answers: Tensor) -> Tensor:
        row = self.row
        assert row is not None
        assert self.memory is not None
        if row.placement is None:
            grid = split_pieces(answers, row.layout.tokens, row.trailing, row.part.text == "last")[1]
        else:
            grid = row.placement.split(answers)[1]
        if row.reordered and row.layout.regions is not None:
            grid = row.layout.regions.gather(grid)  # as merged steps have it
        record_full(self.memory, grid)
        return answers

    def _in_sequence(self, row: AttentionRow, indices: Tensor, args: Args, kwargs: Kwargs) -> Tensor:
        """(B, M) among the tokens of the grid -> (B, M + others): the same in the whole sequence, and all others."""
        before, behind = self._other_keys(row, args, kwargs)
        if row.placement is not None and row.full:
            return row.placement.indices(indices, before + row.given)
        others = torch.arange(before + row.given + behind, device=indices.device).expand(indices.shape[0], -1)
        return torch.cat([others[:, :before], indices + before, others[:, before + row.given :]], dim=1)

    def _mask(self, row: AttentionRow, given: Tensor | None, args: Args, kwargs: Kwargs) -> Tensor | None:
        """The additive mask over keys, the merged ones weighted by what they stand for (design: proportional)."""
        keys = self._operators.keys
        mass = keys.mass if keys is not None and row.weighs else None
        if keys is None or (mass is None and (given is None or (row.full and not row.reads))):
            return None
        if given is not None and row.part.text == "none":
            refuse_image_mask(row.block.name)
        tokens = self._argument.read(args, kwargs)
        before, behind = self._other_keys(row, args, kwargs)
        flat = row.part.mask == "3d" and not row.reads

        def weights() -> Tensor:
            made = tokens.new_zeros(tokens.shape[0], row.layout.kept_keys) if mass is None else mass.log()
            made = functional.pad(made.to(tokens.dtype), (before, behind))
            return made[:, None] if flat else made[:, None, None]

        made: Tensor = self._derived(("mask", before, behind, flat, tokens.dtype, mass is None), mass, weights)
        if given is None:
            return made
        given = given[:, None, None] if given.dim() == 2 else given
        if row.placement is not None:
            given = row.placement.mask_last(given)
        return made + _shortened(given, before, behind, row.layout, made.dtype)

    def _other_keys(self, row: AttentionRow, args: Args, kwargs: Kwargs) -> tuple[int, int]:
        """How many keys that are not of the grid stand before and behind those of the grid."""
        if row.part.own_keys:
            return 0, 0
        tokens = self._argument.read(args, kwargs)
        text = given_argument(self._names, args, kwargs, row.part.context_argument)
        # Some pass the same tokens once more, for keys.
        others = tokens.shape[1] - row.called_with + (0 if text is None or text is tokens else text.shape[1])
        behind = others if row.part.text == "last" else row.trailing
        return others - behind, behind

    def _moved(self, row: AttentionRow, rows: Any) -> Any:
        rows = rows if row.placement is None else row.placement.grid_last(rows)
        return rows_of_kept(row.block, self.group, rows, row.layout.tokens, row.trailing, self.session)

    def _derived(self, key: Hashable, source: Any, make: Callable[[], Any]) -> Any:
        return derived(self.group, key, source, make)


class RotaryHook:
    """Brings the position embeddings of one block to the tokens it runs on."""

    def __init__(self, session: Session, module: nn.Module) -> None:
        self.session = session
        self.row: RotaryRow | None = None
        self._names = argument_names(module)
        self.group = Group()

    def hand(self, row: RotaryRow | None, group: Group) -> None:
        self.row, self.group = row, group

    def move(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        row = self.row
        if row is None:
            return None
        assert row.block.rotary is not None

        def moved(rows: Any) -> Any:
            rows = rows if row.placement is None else row.placement.grid_last(rows)
            if row.order is not None:
                rows = _rows_at(row.block, rows, row.order, row.tokens, row.trailing)
            if row.merged:
                rows = rows_of_kept(row.block, self.group, rows, row.tokens, row.trailing, self.session)
            return rows

        return with_moved(self._names, args, kwargs, row.block.rotary.argument, self.group, "block rotary", moved)


def with_moved(
    names: tuple[str, ...],
    args: Args,
    kwargs: Kwargs,
    name: str | tuple[str, ...],
    group: Group,
    key: str,
    move: Callable[[Any], Any],
) -> tuple[Args, Kwargs]:
    """The arguments of a call with its position embeddings moved; one that is several arguments is moved as a tuple."""
    several = (name,) if isinstance(name, str) else name
    rows = tuple(given_argument(names, args, kwargs, each) for each in several)
    given = rows[0] if isinstance(name, str) else rows
    moved = derived(group, (key, name), rows[0], lambda: move(given))
    for each, value in zip(several, (moved,) if isinstance(name, str) else moved, strict=True):
        args, kwargs = with_argument(names, args, kwargs, each, value)
    return args, kwargs


def derived(group: Group, key: Hashable, source: Any, make: Callable[[], Any]) -> Any:
    """Something made from the operators and a `source`, once for all blocks that share both.

    Every block of a transformer is given the same position embeddings, and its keys weigh the same.
    """
    if torch.compiler.is_compiling():
        return make()  # compiled blocks do not share what they make
    current = group.current
    kept = current.derived.get(key)
    if kept is None or kept[0] is not source or kept[1] is not current.operators:
        kept = current.derived[key] = source, current.operators, make()
    return kept[2]


def rows_of_kept(block: Block, group: Group, rows: Any, tokens: int, trailing: int, session: Session) -> Any:
    """Position embeddings of the tokens that are left."""
    operators = group.current.operators
    assert operators is not None
    queries = operators.queries
    if queries is None or block.rotary is None:
        return rows
    if queries.destinations is None:
        raise MergeRuntimeError(
            f"{type(session.config).__name__} keeps tokens that sit nowhere on the grid, which a model with rotary "
            f"position embeddings cannot use: choose ToMA."
        )
    indices = queries.destinations if block.rotary.per_sample else queries.destinations[0]
    return _rows_at(block, rows, indices, tokens, trailing)


def _rows_at(block: Block, rows: Any, indices: Tensor, tokens: int, trailing: int) -> Any:
    """Rows of the grid's tokens at `indices`, (M,) or (B, M), with those behind the grid as they are."""
    if rows is None or block.rotary is None:
        return rows
    if trailing:
        behind = torch.arange(tokens, tokens + trailing, device=indices.device)
        indices = torch.cat([indices, behind.expand(*indices.shape[:-1], trailing)], dim=-1)
    return block.rotary.at(rows, indices, tokens + trailing)


def _shortened(mask: Tensor, before: int, behind: int, layout: Layout, dtype: torch.dtype) -> Tensor:
    """A model's own mask (..., queries or 1, keys) for merged tokens: it treats all tokens of the grid alike."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)
    mask = _with_kept(mask, -1, before, layout.kept_keys, behind)
    return (_with_kept(mask, -2, before, layout.kept, behind) if mask.shape[-2] > 1 else mask).to(dtype)


def _with_kept(mask: Tensor, axis: int, before: int, kept: int, behind: int) -> Tensor:
    length = mask.shape[axis]
    first = mask.narrow(axis, before, 1)
    grid = first.expand(*(kept if size == axis % mask.dim() else -1 for size in range(mask.dim())))
    return torch.cat([mask.narrow(axis, 0, before), grid, mask.narrow(axis, length - behind, behind)], dim=axis)
