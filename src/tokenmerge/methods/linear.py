"""An operator that is a matrix product per region: ToMA's, and the lower bound's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmerge.ops.regions import Regions


@dataclass(frozen=True, eq=False)
class LinearOperator:
    """Merges by Ã and unmerges by U, one pair per group; a group is a region of a sample, or a whole sample."""

    down: Tensor  # (G, D, n)
    up: Tensor  # (G, n, D)
    regions: Regions | None = None  # set where tokens come in grid order and must be gathered into regions first
    mass: Tensor | None = None  # (B, M)
    destinations: Tensor | None = None  # (B, M)

    def merge(self, tokens: Tensor) -> Tensor:
        if self.regions is not None:
            tokens = self.regions.gather(tokens)
        return self._product(self.down, tokens)

    def unmerge(self, tokens: Tensor) -> Tensor:
        full = self._product(self.up, tokens)
        return full if self.regions is None else self.regions.scatter(full)

    @staticmethod
    def _product(matrix: Tensor, tokens: Tensor) -> Tensor:
        """(G, a, b), (B, (G / B) * b, C) -> (B, (G / B) * a, C)."""
        batch, _, channels = tokens.shape
        groups, _, inner = matrix.shape
        return torch.bmm(matrix, tokens.reshape(groups, inner, channels)).view(batch, -1, channels)
