"""What carries out a row of a Program by hooks on modules: spans, and hooks on attention and on position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tokenmerge.engine.program import AnyRow
from tokenmerge.engine.state import Group, Memory

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
