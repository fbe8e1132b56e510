"""Hooks on attention modules: what merged keys stand for, where they are, which are read."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokenmerge.config.interfaces import Layout
from tokenmerge.engine.arguments import TokenArgument
from tokenmerge.engine.compatibility import refuse_perturbed
from tokenmerge.engine.correction import record_full, unmerge_corrected
from tokenmerge.engine.inner import Asked, InnerAttention, Weights
from tokenmerge.engine.program import AttentionRow
from tokenmerge.engine.rotary import RotaryCarrier
from tokenmerge.engine.span import refuse_image_mask
from tokenmerge.engine.state import Group, Memory
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.arguments import Args, Kwargs, given_argument, with_argument
from tokenmerge.models.attention_backends import UNKNOWN, backend_of
from tokenmerge.ops.weighted_keys import SMALL

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class _Called(NamedTuple):
    """What the attention is called with, read once a call: every look-up here is Python time for each attention."""

    tokens: Tensor  # (B, L, C)
    before: int  # keys that are not of the grid, before and behind those of the grid
    behind: int


class AttentionHook(RotaryCarrier[AttentionRow]):
    """Hands an attention what its merged tokens stand for."""

    def __init__(self, session: Session, name: str, argument: TokenArgument, module: nn.Module) -> None:
        """argument: how the attention is given tokens; read before, because torch.compile cannot follow `inspect`."""
        super().__init__(session, name, argument.names)
        self._backend = backend_of(module)  # asked before, because torch.compile cannot follow that either
        self._acts_inside = False
        self._argument = argument
        self._inner: InnerAttention | None = None  # entered while the attention runs
        self.is_small = True  # in its last call: too small to gain by doing without a mask

    def hand(self, row: AttentionRow | None, group: Group, memories: dict[int, Memory]) -> None:
        super().hand(row, group, memories)
        self._acts_inside = row is not None and row.acts_inside
        self.forget_interrupted()

    def attend(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Hand the attention what its merged tokens stand for, and where they are."""
        row = self.row
        if row is None:
            return None
        if self._inner is not None:
            self.forget_interrupted()
        if self._acts_inside and not torch.compiler.is_compiling():
            self._backend = backend_of(module)
        if row.subset is not None:
            context = self._argument.read(args, kwargs).index_select(1, row.subset)
            return with_argument(self.names, args, kwargs, row.part.context_argument, context)
        if row.records:
            self._enter_inner(row, self._called(row, args, kwargs), args, kwargs, Asked(None, self._record_answers))
            return None
        return self._attend_merged(row, module, args, kwargs)

    def _attend_merged(self, row: AttentionRow, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        names, called = self.names, self._called(row, args, kwargs)
        if row.given == row.layout.tokens and not torch.compiler.is_compiling():
            # No span merges before it, so it says how many queries it was asked.
            self.session.noted[row] = called.tokens.shape[1] - row.given + row.layout.kept
        if row.moves_rotary:
            assert row.block.rotary is not None
            name = row.block.rotary.attention_argument or row.block.rotary.argument
            args, kwargs = self.with_moved(args, kwargs, name, "rotary", partial(self._moved, row))
        # A mask over text alone stays: the attention itself goes on to the image.
        of_text = row.part.text_mask or "self" not in row.part.kinds
        given = None if of_text else given_argument(names, args, kwargs, row.part.mask_argument)
        mask = self._mask(row, given, called)
        read = self._read(row, called)
        asked = self._asked(row, called)
        fewer = read is not None or asked is not None
        if mask is not None or fewer:
            refuse_perturbed(self.name, module)
        weights = None if mask is None else self._weights(row, mask, given, called)
        if fewer or (weights is not None and (row.part.mask == "inside" or not weights.as_mask)):
            self._enter_inner(row, called, args, kwargs, asked, read, weights)
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

    def _enter_inner(
        self,
        row: AttentionRow,
        called: _Called,
        args: Args,
        kwargs: Kwargs,
        asked: Asked | None,
        read: Tensor | None = None,
        weights: Weights | None = None,
    ) -> None:
        self._inner = InnerAttention(
            self._argument.given(args, kwargs),
            called.before + row.given + called.behind,
            read,
            weights,
            asked,
            before=called.before,
            alone=row.given + row.trailing,
            cached=row.part.cached_keys,
            keys=row.layout.kept_keys if row.part.own_keys else None,
            backend=self._backend,
        )
        self._inner.enter()

    def _read(self, row: AttentionRow, called: _Called) -> Tensor | None:
        """(B, K) which keys of its sequence the attention reads; None where it reads all."""
        if not row.reads:
            return None
        keys: Any = self.operators.keys
        if keys.destinations is None:
            raise MergeRuntimeError(
                f"this model computes queries and keys from the same tokens, so keys can only be sampled, not "
                f"averaged, and {type(self.session.config).__name__} averages them: use SampledKeys or ToDo."
            )
        return self._in_sequence(row, "keys", keys.destinations, called)

    def _asked(self, row: AttentionRow, called: _Called) -> Asked | None:
        """Which queries of its sequence the attention is asked; None where it is asked all that it is given."""
        if not row.asks:
            return None
        queries: Any = self.operators.queries

        def spread(answers: Tensor) -> Tensor:
            before, grid, behind = row.pieces(answers, row.layout.kept)
            return row.rejoined(before, unmerge_corrected(queries, grid, self.memories.get(0)), behind)

        return Asked(self._in_sequence(row, "queries", queries.destinations, called), spread)

    def _record_answers(self, answers: Tensor) -> Tensor:
        row = self.row
        assert row is not None
        record_full(self.memories[0], row.in_plan_order(row.given_pieces(answers)[1]))
        return answers

    def _in_sequence(self, row: AttentionRow, which: str, indices: Tensor, called: _Called) -> Tensor:
        """(B, M) among the tokens of the grid -> (B, M + others): the same in the whole sequence, and all others."""
        before, behind = called.before, called.behind
        placement = row.placement if row.full else None

        def whole() -> Tensor:
            if placement is not None:
                return placement.indices(indices, before + row.given)
            others = torch.arange(before + row.given + behind, device=indices.device).expand(indices.shape[0], -1)
            return torch.cat([others[:, :before], indices + before, others[:, before + row.given :]], dim=1)

        return self.derived((which, before, row.given, behind, placement), indices, whole)  # type: ignore[no-any-return]

    def _mask(self, row: AttentionRow, given: Tensor | None, called: _Called) -> Tensor | None:
        """The additive mask over keys, the merged ones weighted by what they stand for (design: proportional)."""
        keys = self.operators.keys
        mass = keys.mass if keys is not None and row.weighs else None
        if keys is None or (mass is None and (given is None or (row.full and not row.reads))):
            return None
        if given is not None and row.part.text == "none":
            refuse_image_mask(row.block.name)
        tokens, before, behind = called
        flat = row.part.mask == "3d" and not row.reads

        def weights() -> Tensor:
            made = tokens.new_zeros(tokens.shape[0], row.layout.kept_keys) if mass is None else mass.log()
            made = functional.pad(made.to(tokens.dtype), (before, behind))
            return made[:, None] if flat else made[:, None, None]

        made: Tensor = self.derived(("mask", before, behind, flat, tokens.dtype, mass is None), mass, weights)
        if given is None:
            return made
        given = given[:, None, None] if given.dim() == 2 else given
        if row.placement is not None:
            given = row.placement.mask_last(given)
        return made + _shortened(given, before, behind, row.layout, made.dtype)

    def _weights(self, row: AttentionRow, mask: Tensor, given: Tensor | None, called: _Called) -> Weights:
        """The mask as weights of keys, and whether they reach the attention as a mask."""
        tokens, before, behind = called
        backend = self._backend
        known = row.part.mask == "inside" or backend is not UNKNOWN
        samples, _, channels = tokens.shape
        work = 2 * samples * channels * (before + row.given + behind) * mask.shape[-1]
        if not torch.compiler.is_compiling():
            self.is_small = work < SMALL
        if given is not None or not (row.weighs and row.without_mask and known):
            return Weights(mask)
        if backend.takes_mask and work < SMALL:
            return Weights(mask)
        image = (before, before + row.layout.kept_keys) if row.layout.equal_mass and before + behind else None
        return Weights(mask if mask.dim() == 4 else mask[:, None], image, as_mask=False)

    def _called(self, row: AttentionRow, args: Args, kwargs: Kwargs) -> _Called:
        tokens = self._argument.read(args, kwargs)
        if row.part.own_keys:
            return _Called(tokens, 0, 0)
        text = given_argument(self.names, args, kwargs, row.part.context_argument)
        # Some pass the same tokens once more, for keys.
        others = tokens.shape[1] - row.called_with + (0 if text is None or text is tokens else text.shape[1])
        behind = others if row.part.text == "last" else row.trailing
        return _Called(tokens, others - behind, behind)

    def _moved(self, row: AttentionRow, rows: Any) -> Any:
        rows = rows if row.placement is None else row.placement.grid_last(rows)
        return self.rows_of_kept(row, rows)


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
