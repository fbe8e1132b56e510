"""An operator from a bipartite matching: ToMeSD's and ToFu's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tokenmerge.ops.bipartite import Matching, unmerge_by_copy


@dataclass(frozen=True, eq=False)
class MatchedOperator:
    """Merges tokens into the ones they were matched with, and copies back."""

    matching: Matching
    combine: Callable[[Tensor, Matching], Tensor]  # (B, N, C) -> (B, M, C)

    @property
    def mass(self) -> Tensor:
        return self.matching.mass

    @property
    def destinations(self) -> Tensor:
        return self.matching.kept

    def merge(self, tokens: Tensor) -> Tensor:
        return self.combine(tokens, self.matching)

    def unmerge(self, tokens: Tensor) -> Tensor:
        return unmerge_by_copy(tokens, self.matching)
