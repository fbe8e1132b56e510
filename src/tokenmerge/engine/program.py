"""What a call does to one stack of blocks, decided before it runs: a row for each span, attention and position table.

Rows are frozen. `resolve` makes them, spans and hooks carry them out, `explain` prints them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.interfaces import BlockContext, Layout
from tokenmerge.engine.arguments import Pieces, joined, split_pieces
from tokenmerge.engine.placement import Placement
from tokenmerge.models.base import Block, Part, Stack


@dataclass(frozen=True, eq=False)
class StackDescription:
    """A stack, and what the config and the rest of the model say about it: nothing here depends on a call."""

    stack: Stack
    merging: tuple[Block, ...]  # blocks that are not skipped
    numbers: dict[str, int]  # each block's number among all blocks of the model
    count: int  # of all blocks of the model
    coarsest: int  # the largest `downsample` of the model's stacks


@dataclass(frozen=True)
class Facts:
    """What is the same for every stack of a call."""

    config: MergeConfig | None  # with the ratio of this step as a number; None where that is 0
    positional: tuple[str, ...] = ()  # kinds of parts in which this call looks tokens up by position
    fixed_order: str = ""  # why tokens must stay in grid order, where they must
    interleaved: bool = False  # something is added to the tokens between blocks
    cached: frozenset[str] = frozenset()  # parts left alone, because a cache keeps what they give
    subset_keys: frozenset[str] = frozenset()  # parts whose attention reads a subset of keys at full steps
    reference_ratio: float = 0.0  # the fraction of reference tokens merged away


@dataclass(frozen=True)
class StackCall:
    """What the owner of a stack was called with."""

    grid: tuple[int, ...]
    trailing: int  # tokens behind the grid's that are never merged
    device: torch.device
    isolated: bool = False  # each block returns all its tokens, because it cannot count on its neighbours
    wraps: bool = False  # the owner, as it is now, can run on merged tokens
    starts: tuple[int, ...] = ()  # where the grid's tokens begin in a sequence; empty: they end it
    references: tuple[tuple[int, ...], ...] = ()  # grids of the reference images that are the trailing tokens


Act = Literal["merge", "record", "prepare"]
Where = Literal["part", "block", "transformer"]  # a run of blocks is a "block" with another last block


@dataclass(frozen=True, eq=False, kw_only=True)
class Row:
    """What all rows say: whose operators they use, and where the tokens of the grid stand in a sequence."""

    group: Hashable
    layout: Layout
    trailing: int
    part: Part | None = None
    reordered: bool = False  # merged steps have tokens in region order
    corrected: bool = False  # it has a memory of merging errors
    placement: Placement | None = None  # where the grid's tokens are, if they do not end the sequence

    @property
    def memory_keys(self) -> dict[int, Hashable]:
        """What it records merging errors under, by their position in an output. Those of one ratio are no other's."""
        return {}

    @property
    def memory_outlasts_plans(self) -> bool:
        return False

    def pieces(self, tokens: Tensor, count: int) -> Pieces:
        """Tokens before those of the grid, of which there are `count`, and behind them."""
        return split_pieces(tokens, count, self.trailing, self.part is not None and self.part.text == "last")

    def given_pieces(self, tokens: Tensor) -> Pieces:
        """The pieces of a sequence as the model has it; inside a merged span the grid's tokens come last."""
        if self.placement is not None:
            return *self.placement.split(tokens), None
        return self.pieces(tokens, self.layout.tokens)

    def rejoined(self, before: Tensor | None, grid: Tensor, behind: Tensor | None) -> Tensor:
        """A sequence as the model has it, with all tokens of the grid."""
        return joined(before, grid, behind) if self.placement is None else self.placement.joined(before, grid)

    def in_plan_order(self, grid: Tensor) -> Tensor:
        """Tokens of the grid in the order in which merged steps have them."""
        regions = self.layout.regions
        return regions.gather(grid) if self.reordered and regions is not None else grid


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanRow(Row):
    """What happens between two points of a stack.

    "merge": tokens are merged where the span begins and unmerged where it ends. "record": the output on all tokens is
    kept for calibration. "prepare": nothing but a refresh of the plan, or a change of order.
    """

    act: Act
    where: Where
    first: Block
    last: Block
    context: BlockContext
    refresh: bool = False  # plans that are due are made here
    gather: bool = False  # tokens are brought into region order where it begins
    scatter: bool = False  # and back into grid order where it ends
    residual: bool = False  # x + U(T(Mx) - Mx), so that what merging blurred stays sharp in x
    merges_queries: bool = True  # False: all tokens pass, and fewer keys are read
    separate_keys: bool = False  # its attention is given keys of other tokens than its queries

    @property
    def ends(self) -> bool:
        """Whether anything is done where it ends: not if only keys were left out on the way."""
        moved = self.merges_queries or self.placement is not None
        return self.act == "record" or (self.act == "merge" and moved) or self.scatter

    @property
    def block(self) -> Block:
        return self.first

    @property
    def name(self) -> str:
        return self.first.name if self.part is None else self.first.path(self.part)

    @property
    def positions(self) -> tuple[int | None, ...]:
        """Which items of the output hold tokens."""
        return (self.last.output,) if self.part is None else self.part.outputs

    @property
    def key(self) -> Hashable:
        """What is the same for the rows of all Programs that the same hooks carry out."""
        part = None if self.part is None else self.part.module
        return self.where, self.first.name, self.last.name, part, self.ends

    @property
    def memory_keys(self) -> dict[int, Hashable]:
        positions = [position or 0 for position in self.positions if self.corrected]
        return {position: (self.where, self.name, position, self.layout.kept) for position in positions}

    @property
    def memory_outlasts_plans(self) -> bool:
        return self.layout.fixed


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionRow(Row):
    """What one attention module gets about merged tokens, which it could not know."""

    block: Block
    part: Part
    records: bool = False  # a full step whose answers are kept for calibration, inside
    subset: Tensor | None = None  # (K,) the tokens whose keys it reads, at a full step
    weighs: bool = False  # keys count as many times as the tokens they stand for
    without_mask: bool = False  # on this device the fastest attention takes no mask
    reads: bool = False  # it reads fewer keys inside
    full: bool = False  # it is called with all tokens: what is left out of them is left out inside
    asks: bool = False  # it answers fewer queries inside, because its keys are of all tokens
    moves_rotary: bool = False  # position embeddings are brought to the tokens that are left
    merged_inside: bool = False  # tokens are merged inside the module, which is called with all of them

    @property
    def given(self) -> int:
        """Tokens of the grid that its queries are of."""
        return self.layout.tokens if self.full else self.layout.kept

    @property
    def called_with(self) -> int:
        """Tokens of the grid in what the module is called with."""
        return self.layout.tokens if self.merged_inside else self.given

    @property
    def acts_inside(self) -> bool:
        """Whether something may be done inside the attention itself. A mask is an argument, and all else is not."""
        weighs_inside = self.part.mask == "inside" or (self.weighs and self.without_mask)
        return self.records or self.reads or self.asks or weighs_inside

    @property
    def name(self) -> str:
        return self.block.path(self.part)

    @property
    def key(self) -> Hashable:
        return "attention", self.name

    @property
    def memory_keys(self) -> dict[int, Hashable]:
        records = self.corrected and (self.records or self.asks)
        return {0: ("inside", self.name, self.layout.kept)} if records else {}


@dataclass(frozen=True, eq=False, kw_only=True)
class RotaryRow(Row):
    """The position embeddings that a block is given, brought to the tokens it runs on."""

    block: Block
    merged: bool  # they are brought to the tokens that are left, after the order if that is changed

    @property
    def key(self) -> Hashable:
        return "rotary", self.block.name


AnyRow = SpanRow | AttentionRow | RotaryRow


@dataclass(frozen=True, eq=False)
class Program:
    """What a call does to one stack."""

    grid: tuple[int, ...]
    layout: Layout | None = None  # None where nothing is merged
    reason: str = ""  # why nothing is merged, where nothing is
    notes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()  # names of the parts that run on merged tokens
    kinds: frozenset[str] = frozenset()  # "self", "cross", "mlp" among them
    spans: tuple[SpanRow, ...] = ()
    attentions: tuple[AttentionRow, ...] = ()
    rotaries: tuple[RotaryRow, ...] = ()
    blocks: tuple[str, ...] = ()  # that merge

    @property
    def merges(self) -> bool:
        return bool(self.parts)

    @property
    def rows(self) -> tuple[AnyRow, ...]:
        """Spans come before what reads their operators."""
        return *self.spans, *self.rotaries, *self.attentions

    @property
    def wraps(self) -> bool:
        """Whether the owner of the stack runs on merged tokens, its projections too."""
        return any(span.where == "transformer" for span in self.spans)
