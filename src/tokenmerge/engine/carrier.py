"""What carries out a row of a Program by hooks on modules: spans, and hooks on attention and on position embeddings."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from tokenmerge.config.interfaces import Operators
from tokenmerge.engine.program import AnyRow
from tokenmerge.engine.state import Group, Memory
from tokenmerge.errors import MergeRuntimeError

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session

SomeRow = TypeVar("SomeRow", bound=AnyRow)


class Carrier(Generic[SomeRow]):
    """Carries out one row. Without a row it does nothing."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name  # made before: torch.compile would make a graph for each name that is made inside a block
        self.row: SomeRow | None = None
        self.group = Group()
        self.memories: dict[int, Memory] = {}  # by the position of the tokens in an output

    def hand(self, row: SomeRow | None, group: Group, memories: dict[int, Memory]) -> None:
        """Take over what this call is to do."""
        self.row, self.group, self.memories = row, group, memories

    @property
    def operators(self) -> Operators:
        operators = self.group.current.operators
        if operators is None:
            assert self.row is not None
            raise MergeRuntimeError(
                f"{self.row.block.name} was called before its tokens were merged: a module before it was left out, or "
                f"something answers in its place. Take that out, or use scope='block' or 'site'."
            )
        return operators

    def derived(self, key: Hashable, source: Any, make: Callable[[], Any]) -> Any:
        """Something made from the operators and a `source`, once for all blocks that share both.

        Every block of a transformer is given the same position embeddings, and its keys weigh the same.
        """
        if torch.compiler.is_compiling():
            return make()  # compiled blocks do not share what they make
        current = self.group.current
        kept = current.derived.get(key)
        if kept is None or kept[0] is not source or kept[1] is not current.operators:
            kept = current.derived[key] = source, current.operators, make()
        return kept[2]
