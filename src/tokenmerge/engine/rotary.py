"""Hooks on position embeddings: each block gets those of the tokens it runs on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenmerge.engine.carrier import Carrier
from tokenmerge.engine.program import AttentionRow, RotaryRow
from tokenmerge.engine.state import Group
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.arguments import Args, Kwargs, argument_names, given_argument, with_argument

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class RotaryHook(Carrier[RotaryRow]):
    """Brings the position embeddings of one block to the tokens it runs on."""

    def __init__(self, session: Session, name: str, module: nn.Module) -> None:
        super().__init__(session, name)
        self._names = argument_names(module)

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
            return rows_of_kept(row, self.group, rows, self.session) if row.merged else rows

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
    if isinstance(name, str):  # all but one family: no loop, because this runs for every block
        given = given_argument(names, args, kwargs, name)
        return with_argument(names, args, kwargs, name, derived(group, (key, name), given, lambda: move(given)))
    rows = tuple(given_argument(names, args, kwargs, each) for each in name)
    for each, value in zip(name, derived(group, (key, name), rows[0], lambda: move(rows)), strict=True):
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


def rows_of_kept(row: RotaryRow | AttentionRow, group: Group, rows: Any, session: Session) -> Any:
    """Position embeddings of the tokens that are left."""
    operators = group.current.operators
    assert operators is not None
    queries = operators.queries
    if queries is None or row.block.rotary is None:
        return rows
    if queries.destinations is None:
        raise MergeRuntimeError(
            f"{type(session.config).__name__} keeps tokens that sit nowhere on the grid, which a model with rotary "
            f"position embeddings cannot use: choose ToMA."
        )
    indices = queries.destinations if row.block.rotary.per_sample else queries.destinations[0]
    return _rows_at(row, rows, indices)


def _rows_at(row: RotaryRow | AttentionRow, rows: Any, indices: Tensor) -> Any:
    """Rows of the grid's tokens at `indices`, (M,) or (B, M), with those behind the grid as they are."""
    if rows is None or row.block.rotary is None:
        return rows
    tokens, trailing = row.layout.tokens, row.trailing
    if trailing:
        behind = torch.arange(tokens, tokens + trailing, device=indices.device)
        indices = torch.cat([indices, behind.expand(*indices.shape[:-1], trailing)], dim=-1)
    return row.block.rotary.at(rows, indices, tokens + trailing)
