"""Where a sequence holds the tokens of the grid, if that is not at its end: at one place, or at one for each sample.

Inside a merged span the tokens of the grid always come last, behind all others. A placement brings sequences, position
embeddings and masks into that order, and what a span returns back out of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True, eq=False)
class Placement:
    """The positions of the grid's `tokens` in a sequence.

    starts: where each sample's grid begins, or one number for all samples. The samples of a padded batch differ if
        their texts, which stand before the image, have different lengths.
    """

    starts: tuple[int, ...]
    tokens: int
    _orders: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def one_for_all(self) -> bool:
        return len(set(self.starts)) == 1

    def split(self, sequence: Tensor, axis: int = 1) -> tuple[Tensor | None, Tensor]:
        """All tokens but the grid's, or None without any; and the grid's.

        sequence: holds one token a row along `axis`, and samples along the first axis.

        >>> others, grid = Placement((0, 2), 2).split(torch.arange(8).view(2, 4))
        >>> others.tolist(), grid.tolist()
        ([[2, 3], [4, 5]], [[0, 1], [6, 7]])
        """
        length = sequence.shape[axis]
        if length == self.tokens:
            return None, sequence
        if self.one_for_all:
            start = self.starts[0]
            sizes = [start, self.tokens, length - start - self.tokens]
            before, grid, behind = torch.split(sequence, sizes, dim=axis)
            pieces = [piece for piece in (before, behind) if piece.shape[axis]]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=axis), grid
        forth, _ = self._order(length, sequence.device)
        ordered = _taken(sequence, forth, axis)
        others, grid = torch.split(ordered, [length - self.tokens, self.tokens], dim=axis)
        return others, grid

    def grid_last(self, value: Any) -> Any:
        """Position embeddings, a tensor or several, in the order that merged spans have: the grid's rows last."""
        return tree_map_only(Tensor, self._rows_last, value)

    def mask_last(self, mask: Tensor) -> Tensor:
        """(B, 1, Q or 1, K): a mask over keys, and perhaps queries, in that order too."""
        for axis in (3, 2) if mask.shape[2] > 1 else (3,):
            mask = self._last(mask, axis)
        return mask

    def _rows_last(self, rows: Tensor) -> Tensor:
        # (S, D), or (B, S, ...). What has no row for each token stays as it is.
        axis = 0 if rows.dim() == 2 and rows.shape[0] >= self.tokens else 1
        return self._last(rows, axis) if rows.dim() > axis and rows.shape[axis] >= self.tokens else rows

    def _last(self, rows: Tensor, axis: int) -> Tensor:
        others, grid = self.split(rows, axis)
        return grid if others is None else torch.cat([others, grid], dim=axis)

    def joined(self, others: Tensor | None, grid: Tensor) -> Tensor:
        """(B, L - N, C), (B, N, C) -> (B, L, C): the sequence that `split` was given."""
        if others is None:
            return grid
        if self.one_for_all:
            before, behind = others[:, : self.starts[0]], others[:, self.starts[0] :]
            return torch.cat([piece for piece in (before, grid, behind) if piece.shape[1]], dim=1)
        _, back = self._order(others.shape[1] + self.tokens, grid.device)
        return _taken(torch.cat([others, grid], dim=1), back, 1)

    def indices(self, kept: Tensor, length: int) -> Tensor:
        """(B, M) among the tokens of the grid -> (B, L - N + M): all others, and those, as positions in a sequence.

        length: of the sequence.
        """
        forth, _ = self._order(length, kept.device)
        order = forth.expand(kept.shape[0], -1)
        return torch.cat([order[:, : length - self.tokens], kept + order[:, length - self.tokens, None]], dim=1)

    def _order(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(B, L) the positions of others, then of the grid; and the way back."""
        key = length, device
        if key not in self._orders:
            rows = torch.arange(length).expand(len(self.starts), -1)
            starts = torch.tensor(self.starts)[:, None]
            in_grid = (rows >= starts) & (rows < starts + self.tokens)
            forth = in_grid.int().argsort(dim=1, stable=True)
            self._orders[key] = forth.to(device), forth.argsort(dim=1).to(device)
        return self._orders[key]


def _taken(sequence: Tensor, order: Tensor, axis: int) -> Tensor:
    """Rows along `axis` in another order for each sample."""
    if sequence.shape[0] != order.shape[0]:  # one table for all samples
        sequence = sequence.expand(order.shape[0], *sequence.shape[1:])
    shape = [1] * sequence.dim()
    shape[0], shape[axis] = order.shape
    return torch.take_along_dim(sequence, order.view(shape), dim=axis)
