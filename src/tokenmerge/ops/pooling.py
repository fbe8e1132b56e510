"""Nearest-neighbour pooling of a grid of tokens (ToDo, Smith et al. 2024, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmerge.ops.indexing import crossed


@dataclass(frozen=True, eq=False)
class Pooling:
    """Which tokens of a grid a coarser one keeps, and which of the kept ones stands for each token."""

    kept: Tensor  # (M,) token index of each kept one
    place: Tensor  # (N,) position among the kept of the one that stands for each token
    mass: Tensor  # (M,) float32, how many tokens each kept one stands for


def pooled_grid(grid: tuple[int, ...], keep: float) -> tuple[int, ...]:
    """The grid that keeps `keep` of the rows and of the columns; frames, in front, are all kept.

    >>> pooled_grid((64, 64), 0.5), pooled_grid((3, 5, 8), 0.5)
    ((32, 32), (3, 2, 4))
    """
    *leading, height, width = grid
    # To the nearest number; a half goes down, so that half of seven rows are the paper's three. 1e-9: the half may
    # have come out of a square root just above it.
    return (*leading, *(max(1, math.ceil(length * keep - 0.5 - 1e-9)) for length in (height, width)))


def nearest_pooling(grid: tuple[int, ...], coarse: tuple[int, ...], device: torch.device) -> Pooling:
    """Keep tokens at even distances along each axis, the first always: what nearest interpolation reads.

    >>> nearest_pooling((1, 5), (1, 2), torch.device("cpu")).kept.tolist()
    [0, 2]
    """
    axes = [_along_axis(length, kept, device) for length, kept in zip(grid, coarse, strict=True)]
    kept = crossed(grid, (samples for samples, _ in axes))
    place = crossed(coarse, (owner for _, owner in axes))
    mass = torch.zeros(math.prod(coarse), device=device).index_add(0, place, torch.ones(len(place), device=device))
    return Pooling(kept, place, mass)


def _along_axis(length: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions (count,) that are kept of an axis, and which of them each position (length,) reads: the last before."""
    samples = torch.arange(count, device=device) * length // count
    positions = torch.arange(length, device=device)
    owner = (positions.unsqueeze(1) >= samples).sum(dim=1) - 1
    return samples, owner
