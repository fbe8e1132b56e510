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
    protected: int = 0  # tokens at the end, behind those of the regions, that stay as they are
    mass: Tensor | None = None  # (B, M)
    destinations: Tensor | None = None  # (B, M)

    def merge(self, tokens: Tensor) -> Tensor:
        if self.regions is not None:
            tokens = self.regions.gather(tokens)
        inside, protected = self._split(tokens)
        merged = self._product(self.down, inside)
        return merged if protected is None else torch.cat([merged, protected], dim=1)

    def unmerge(self, tokens: Tensor) -> Tensor:
        inside, protected = self._split(tokens)
        full = self._product(self.up, inside)
        full = full if protected is None else torch.cat([full, protected], dim=1)
        return full if self.regions is None else self.regions.scatter(full)

    def _split(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens of regions, and protected ones behind them, which pass."""
        if not self.protected:
            return tokens, None
        inside, protected = torch.split(tokens, [tokens.shape[1] - self.protected, self.protected], dim=1)
        return inside, protected

    @staticmethod
    def _product(matrix: Tensor, tokens: Tensor) -> Tensor:
        """(G, a, b), (B, (G / B) * b, C) -> (B, (G / B) * a, C)."""
        batch, _, channels = tokens.shape
        groups, _, inner = matrix.shape
        return torch.bmm(matrix, tokens.reshape(groups, inner, channels)).view(batch, -1, channels)
