"""Hooks on position embeddings: each block gets those of the tokens it runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenmerge.engine.carrier import Carrier, SomeRow
from tokenmerge.engine.program import AttentionRow, RotaryRow
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.arguments import Args, Kwargs, given_argument, with_argument

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class RotaryCarrier(Carrier[SomeRow]):
    """Brings position embeddings to the tokens that its row leaves."""

    def __init__(self, session: Session, name: str, names: tuple[str, ...]) -> None:
        """names: of the positional arguments of its module."""
        super().__init__(session, name)
        self.names = names

    def with_moved(
        self, args: Args, kwargs: Kwargs, name: str | tuple[str, ...], key: str, move: Callable[[Any], Any]
    ) -> tuple[Args, Kwargs]:
        """The arguments of a call with its position embeddings moved; of several arguments they are a tuple."""
        names = self.names
        if isinstance(name, str):  # all but one family: no loop, because this runs for every block
            given = given_argument(names, args, kwargs, name)
            return with_argument(names, args, kwargs, name, self.derived((key, name), given, lambda: move(given)))
        rows = tuple(given_argument(names, args, kwargs, each) for each in name)
        for each, value in zip(name, self.derived((key, name), rows[0], lambda: move(rows)), strict=True):
            args, kwargs = with_argument(names, args, kwargs, each, value)
        return args, kwargs

    def rows_of_kept(self, row: RotaryRow | AttentionRow, rows: Any) -> Any:
        """Position embeddings of the tokens that are left."""
        queries = self.operators.queries
        if queries is None or row.block.rotary is None:
            return rows
        if queries.destinations is None:
            raise MergeRuntimeError(
                f"{type(self.session.config).__name__} keeps tokens that sit nowhere on the grid, which a model with "
                f"rotary position embeddings cannot use: choose ToMA."
            )
        return _rows_at(row, rows, queries.destinations if row.block.rotary.per_sample else queries.destinations[0])


class RotaryHook(RotaryCarrier[RotaryRow]):
    """Brings the position embeddings of one block to the tokens it runs on."""

    def move(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        row = self.row
        if row is None:
            return None
        assert row.block.rotary is not None

        def moved(rows: Any) -> Any:
            rows = rows if row.placement is None else row.placement.grid_last(rows)
            if row.reordered:
                assert row.layout.regions is not None
                rows = _rows_at(row, rows, row.layout.regions.order)
            return self.rows_of_kept(row, rows) if row.merged else rows

        return self.with_moved(args, kwargs, row.block.rotary.argument, "block rotary", moved)


def _rows_at(row: RotaryRow | AttentionRow, rows: Any, indices: Tensor) -> Any:
    """Rows of the grid's tokens at `indices`, (M,) or (B, M), with those behind the grid as they are."""
    if rows is None or row.block.rotary is None:
        return rows
    tokens, trailing = row.layout.tokens, row.trailing
    if trailing:
        behind = torch.arange(tokens, tokens + trailing, device=indices.device)
        indices = torch.cat([indices, behind.expand(*indices.shape[:-1], trailing)], dim=-1)
    return row.block.rotary.at(rows, indices, tokens + trailing)
