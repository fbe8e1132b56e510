"""From a config, a stack and the facts of a call to a Program: pure, and without weights.

Something is not merged, or not where you expect it: the reason is made here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout
from tokenmerge.engine.placement import Placement
from tokenmerge.engine.program import (
    Act,
    AttentionRow,
    Facts,
    Program,
    RotaryRow,
    SpanRow,
    StackCall,
    StackDescription,
    Where,
)
from tokenmerge.engine.schedule import Kind
from tokenmerge.engine.subset import key_distance, key_subset
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.methods.references import JoinedLayout, with_references
from tokenmerge.models.base import Block, Part, chosen_parts
from tokenmerge.ops.weighted_keys import weighs_without_mask


def resolve(
    described: StackDescription, facts: Facts, call: StackCall, kind: Kind, protected: tuple[int, ...] = ()
) -> Program:
    """What a call of this kind does to a stack.

    protected: tokens of the grid that stay as they are, by the user's mask.
    """
    if facts.config is None:
        return Program(call.grid, reason="ratio 0 at this step")
    if not described.merging:
        return Program(call.grid, reason="all blocks skipped")
    layout, reason = layout_of(facts.config, call.grid, described.stack.downsample, protected, described.stack.name)
    if layout is None:
        return Program(call.grid, reason=reason)
    if facts.reference_ratio and call.references:
        joined = with_references(layout, facts.config, facts.reference_ratio, call.references)
        # They count as the image's tokens from here on, with none behind those.
        layout, call = joined, dataclasses.replace(call, trailing=0)
    return _Resolver(described, facts, facts.config, call, kind, layout.to(call.device)).program()


def layout_of(
    config: MergeConfig, grid: tuple[int, ...], downsample: int, protected: tuple[int, ...], name: str = ""
) -> tuple[Layout | None, str]:
    """What a config makes of a grid; or None, and the reason."""
    tokens = math.prod(grid)
    if tokens < config.min_tokens:
        return None, f"{tokens} tokens, fewer than min_tokens={config.min_tokens}"
    try:
        layout = config.layout(grid, downsample, protected)
    except CannotMerge as reason:
        return None, str(reason)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if layout.kept != layout.kept_keys and not config.separate_keys:
        raise ConfigError(
            f"{type(config).__name__}.layout keeps {layout.kept_keys} keys and {layout.kept} other tokens, but its "
            f"keys are 'merged': a method that keeps other keys has to set keys to 'all' or 'sampled'."
        )
    return layout, ""


class _Resolver:
    """One resolution: the arguments of `resolve`, so that each rule below is a short function of them."""

    def __init__(
        self,
        described: StackDescription,
        facts: Facts,
        config: MergeConfig,
        call: StackCall,
        kind: Kind,
        layout: Layout,
    ) -> None:
        self.described, self.stack = described, described.stack
        self.facts, self.config, self.call, self.kind, self.layout = facts, config, call, kind, layout
        self.scope = config.scope
        self.tokens = layout.tokens
        self.only_keys = layout.kept == self.tokens
        fixed_order = self._fixed_order()
        if fixed_order and self.scope != "site":
            raise MergeRuntimeError(f"{fixed_order}, which merging whole blocks cannot follow: use scope='site'.")
        regions = layout.regions
        # A padded order is longer than the grid, so tokens cannot stay in it between parts. Keys are selected in any.
        stays = fixed_order or self.only_keys or layout.fixed or call.starts
        self.reorders = regions is not None and not (regions.is_identity or regions.padded or stays)
        self.placement = Placement(call.starts, self.tokens) if call.starts else None
        self.isolated = call.isolated or facts.interleaved
        self.corrected = config.correction is not None
        self.act: Act = "record" if kind is Kind.CALIBRATE else "merge"
        self.runs = self._runs()
        self.run_of = {block.name: run for run in self.runs for block in run}

    def _fixed_order(self) -> str:
        if self.facts.positional:
            kinds = ", ".join(self.facts.positional)
            return f"this call looks tokens up by position in {kinds}-attention (IP-Adapter masks do)"
        return self.stack.fixed_order or self.facts.fixed_order

    def program(self) -> Program:
        merged = [(block, part) for block in self.described.merging for part in self._parts(block)]
        acts = self.kind is Kind.MERGED or (self.kind is Kind.CALIBRATE and self.corrected)
        return Program(
            grid=self.call.grid,
            layout=self.layout,
            notes=tuple(self._notes(merged)),
            parts=tuple(block.path(part) for block, part in merged),
            kinds=frozenset(kind for _, part in merged for kind in part.kinds),
            spans=tuple(self._spans()) if acts else (),
            attentions=tuple(self._attentions(merged)) if acts else (),
            rotaries=tuple(self._rotaries()) if self.kind is Kind.MERGED else (),
            blocks=tuple(block.name for block in self.described.merging),
        )

    # -- what is merged -------------------------------------------------------------------------------------------

    def _parts(self, block: Block) -> list[Part]:
        """The parts of a block that run on merged tokens."""
        chosen = chosen_parts(block.parts, self.config.parts, self.config.separate_keys)
        return [part for part in chosen if self._merges_in(block, part)]

    def _merges_in(self, block: Block, part: Part) -> bool:
        if set(part.kinds) & set(self.facts.positional) or block.path(part) in self.facts.cached:
            return False
        only_keys = self.only_keys and self.layout.kept_keys < self.tokens
        return part.can_separate_keys or not only_keys

    def _runs(self) -> list[list[Block]]:
        """Blocks that follow one another without a skipped one between them."""
        merging = {block.name for block in self.described.merging}
        runs: list[list[Block]] = [[]]
        for block in self.stack.blocks:
            if self.isolated or block.name not in merging:
                runs.append([])
            if block.name in merging:
                runs[-1].append(block)
        return [run for run in runs if run]

    # -- spans ----------------------------------------------------------------------------------------------------

    def _spans(self) -> Iterator[SpanRow]:
        if self._wraps:
            run = self.runs[0]
            yield self._row("transformer", run[0], run[-1], merges=True)
            return
        for run in self.runs:
            yield from self._spans_of_run(run)

    @property
    def _wraps(self) -> bool:
        """Whether all of the stack is one run, and nothing is needed of its blocks but what the owner gives."""
        whole = len(self.runs[0]) == len(self.stack.blocks)
        return self.call.wraps and self.scope == "stack" and not self.isolated and whole

    def _spans_of_run(self, run: list[Block]) -> Iterator[SpanRow]:
        if self.scope == "stack":
            yield self._row("block", run[0], run[-1], merges=True)
            return
        for block in run:
            row = self._row("block", block, block, merges=self.scope == "block")
            if row.act != "prepare" or self.kind is Kind.MERGED:
                yield row
            if self.scope == "site":
                yield from self._spans_of_parts(block)

    def _row(self, where: Where, first: Block, last: Block, merges: bool) -> SpanRow:
        run = self.run_of[first.name]
        return self._span(
            where,
            first,
            last,
            act=self.act if merges else "prepare",
            refresh=self.kind is Kind.MERGED,
            gather=self.reorders and first is run[0],
            scatter=self.reorders and last is run[-1],
            residual=merges and where != "transformer" and self._adds(first, last),  # a transformer adds it itself
            corrected=merges and self.corrected,
        )

    def _span(self, where: Where, first: Block, last: Block, **more: Any) -> SpanRow:
        context = self._context(first)
        return SpanRow(where=where, first=first, last=last, context=context, **self._common(first), **more)

    def _common(self, block: Block) -> dict[str, Any]:
        """What all rows say."""
        return {
            "group": self._group(block),
            "layout": self.layout,
            "trailing": self.call.trailing,
            "reordered": self.reorders,
            "placement": self.placement,
        }

    def _adds(self, first: Block, last: Block) -> bool:
        """Whether a span of blocks returns its input plus something, because each of them does."""
        run = self.run_of[first.name]
        return all(block.residual is not False for block in run[run.index(first) : run.index(last) + 1])

    def _spans_of_parts(self, block: Block) -> Iterator[SpanRow]:
        for part in self._parts(block):
            if self._asks(part):
                continue  # all that was left out is back where attention answers
            yield self._span(
                "part",
                block,
                block,
                act=self.act,
                part=part,
                residual=bool(part.residual) if part.module else block.residual is not False,
                corrected=self.corrected,
                merges_queries=self.config.merges_queries or self.layout.kept < self.layout.tokens,
                separate_keys=part.own_keys and self.config.separate_keys,
            )

    def _context(self, block: Block) -> BlockContext:
        return BlockContext(
            name=block.name,
            index=self.described.numbers[block.name],
            count=self.described.count,
            in_region_order=self.reorders,
            one_for_batch=self.stack.one_for_batch,
        )

    def _group(self, block: Block) -> Hashable:
        share = self.config.share
        where = self.stack.level if share == "level" else ""
        if share == "layer":
            # What is merged once for a run has one plan.
            where = self.run_of[block.name][0].name if self.scope == "stack" else block.name
        # Blocks in region order and blocks in grid order cannot read each other's operators, nor can those that keep
        # more or fewer tokens, or select keys among others.
        grids = self.call.grid, self.call.references
        return where, grids, self.reorders, self.layout.kept, self.layout.kept_keys, self.scope

    # -- attention ------------------------------------------------------------------------------------------------

    def _asks(self, part: Part) -> bool:
        """Whether its attention is called with all tokens, because it takes no keys as an argument.

        Queries and keys are then left out inside PyTorch's attention.
        """
        inside = "self" in part.kinds and part.can_separate_keys and not part.own_keys
        return inside and self.config.separate_keys

    def _attentions(self, merged: list[tuple[Block, Part]]) -> Iterator[AttentionRow]:
        row_of = self._recording if self.kind is Kind.CALIBRATE else self._merging
        for block, part in merged:
            if "self" in part.kinds or part.rotary:
                changed = row_of(AttentionRow(block=block, part=part, corrected=self.corrected, **self._common(block)))
                if changed is not None:
                    yield changed

    def _recording(self, row: AttentionRow) -> AttentionRow | None:
        """At a full step, at which it is called with all tokens; None if nothing is recorded or left out in it."""
        asks, subset = self._asks(row.part), self._subset(row.block, row.part)
        if not asks and subset is None:
            return None
        return dataclasses.replace(row, full=True, records=asks, subset=subset)

    def _merging(self, row: AttentionRow) -> AttentionRow | None:
        """At a merged step; None if it needs nothing."""
        part, asks = row.part, self._asks(row.part)
        row = dataclasses.replace(
            row,
            weighs=self._weighs(part),
            without_mask=weighs_without_mask(self.call.device),
            reads=asks and self.layout.kept_keys < self.tokens,
            full=asks,
            asks=asks and self.layout.kept < self.tokens,
            moves_rotary=row.block.rotary is not None and self.scope == "site" and not asks,
            merged_inside=self.scope == "site" and bool(part.module) and part.attention == "",
        )
        # Or it might get a mask, which must then be shortened.
        needed = row.weighs or row.reads or row.asks or row.moves_rotary or (part.mask != "none" and not self._wraps)
        return row if needed else None

    def _weighs(self, part: Part) -> bool:
        """Whether keys get weights for what they stand for: not where all are of the grid and stand for as many."""
        each_for_itself = self.layout.kept_keys == self.tokens
        alone = part.text == "none" and not self.call.trailing
        return self.can_weigh(part) and not each_for_itself and not (alone and self.layout.equal_mass)

    def can_weigh(self, part: Part) -> bool:
        return self.config.proportional and part.mask != "none"

    def _subset(self, block: Block, part: Part) -> Tensor | None:
        """The tokens whose keys self-attention reads at a full step; None where it reads all."""
        if block.path(part) not in self.facts.subset_keys:
            return None
        side = key_distance(self.stack.downsample, self.described.coarsest)
        return key_subset(self.call.grid, side, self.call.device)

    # -- position embeddings --------------------------------------------------------------------------------------

    def _rotaries(self) -> Iterator[RotaryRow]:
        merges = self.scope != "site"
        if not (merges or self.reorders):
            return
        for block in self.described.merging:
            if block.rotary is not None:
                yield RotaryRow(block=block, merged=merges, **self._common(block))

    # -- what explain() says --------------------------------------------------------------------------------------

    def _notes(self, merged: list[tuple[Block, Part]]) -> Iterator[str]:
        if self.isolated and self.scope == "stack":
            yield "merged per block: something is added between blocks"
        if isinstance(self.layout, JoinedLayout):
            yield f"references: {self.layout.kept_of_references} of {self.layout.tokens_of_references} tokens kept"
        if self.config.proportional and any("self" in part.kinds and not self.can_weigh(part) for _, part in merged):
            yield "keys are not weighted: this attention takes no mask"
