"""Bipartite matching of tokens (ToMe for SD, Bolya & Hoffman 2023, section 4; replication thesis, section 4.2).

The grid is cut into cells. Each cell gives a few destinations; all other tokens are sources. Every source is matched
with the destination most like it, and the best matched ones are merged away. Shapes depend on the grid alone, and
nothing waits for the device.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.ops.hashing import scrambled
from tokenmerge.ops.indexing import tokens_at

# Similarities in memory at a time, 256 MB of them: large images have far more, and need not have them all at once.
MOST_SCORES = 2**26


@dataclass(frozen=True, eq=False)
class Matching:
    """Which tokens are kept, and which kept one each token goes into. M kept ones: sources first, destinations last."""

    kept: Tensor  # (B, M) token index of each kept one
    place: Tensor  # (B, N) position among the kept of the one that stands for each token
    mass: Tensor  # (B, M) float32, how many tokens each kept one stands for; sums to N
    by_place: Tensor  # (B * N,) rows of the flattened batch, those that are merged together side by side
    starts: Tensor  # (B * M,) where each kept one's rows begin in `by_place`
    weights: Tensor  # (B * N,) float32, what each row of `by_place` adds to the mean


def split_tokens(
    grid: tuple[int, ...], cell: tuple[int, ...], per_cell: int, seed: int | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The sources (S,) and destinations (D,) of a grid, as token indices.

    seed: which random destinations within each cell; None takes fixed ones, the first of them the
        cell's top left token. The same seed selects the same tokens at any time and on any device.

    Tokens at the right and lower edge that fill no cell are sources.

    >>> sources, destinations = split_tokens((2, 5), (2, 2), 1, None, torch.device("cpu"))
    >>> destinations.tolist(), sorted(sources.tolist())
    ([0, 2], [1, 3, 4, 5, 6, 7, 8, 9])
    """
    cells, edge = _cells_of(grid, cell, device)  # (K, c), (E,)
    if seed is None:
        cells = cells[:, _spread_order(cell)]
    else:
        slots = torch.arange(cells.numel(), device=device).view_as(cells)
        cells = cells.gather(1, scrambled(slots, seed).argsort(dim=1, stable=True))
    destinations = cells[:, :per_cell].flatten()
    sources = torch.cat([cells[:, per_cell:].flatten(), edge])
    return sources, destinations


def count_destinations(grid: tuple[int, ...], cell: tuple[int, ...], per_cell: int) -> int:
    """How many destinations a grid has.

    >>> count_destinations((5, 8), (2, 2), 1)
    8
    """
    return per_cell * math.prod(length // side for length, side in zip(grid, cell, strict=True))


def match_tokens(
    unit: Tensor, sources: Tensor, destinations: Tensor, count: int, one_for_batch: bool = False
) -> Matching:
    """Match every source with the destination most like it, and merge away the `count` best matched.

    unit           (B, N, C)  tokens of length one
    sources        (S,)       token indices
    destinations   (D,)       token indices
    one_for_batch: one matching for all samples, by the sum of their similarities.
    """
    batch, tokens, _ = unit.shape
    best, nearest = _nearest(unit, sources, destinations, one_for_batch)  # (B, S)
    order = best.argsort(dim=-1, descending=True, stable=True)
    gone, stay = order[:, :count], order[:, count:].sort(dim=-1).values
    rows, staying = stay.shape  # one row for the batch, or one a sample

    positions = torch.arange(staying + destinations.shape[0], device=unit.device).expand(rows, -1)
    kept = torch.cat([sources[stay], destinations.expand(rows, -1)], dim=1)  # (B, M)
    place = torch.empty(rows, tokens, dtype=torch.long, device=unit.device)
    place = place.scatter(1, kept, positions).scatter(1, sources[gone], nearest.gather(1, gone) + staying)
    return _grouped(kept.expand(batch, -1), place.expand(batch, -1))


def merge_by_mean(tokens: Tensor, matching: Matching) -> Tensor:
    """Each kept token becomes the mean of those it stands for. (B, N, C) -> (B, M, C)."""
    batch, _, channels = tokens.shape
    # Bags of rows rather than scattered additions: several times faster on a CPU, and the same bits every time on a
    # GPU, where additions to one place come in no fixed order. Weighting before adding cannot overflow half precision.
    merged: Tensor = functional.embedding_bag(
        matching.by_place,
        tokens.reshape(-1, channels),
        matching.starts,
        mode="sum",
        per_sample_weights=matching.weights.to(tokens.dtype),
    )
    return merged.view(batch, -1, channels)


def merge_by_mlerp(tokens: Tensor, matching: Matching) -> Tensor:
    """The mean's direction with the length of the longest token that went into it (MLERP). (B, N, C) -> (B, M, C)."""
    mean = merge_by_mean(tokens, matching)
    wide = torch.promote_types(tokens.dtype, torch.float32)
    lengths = torch.linalg.vector_norm(tokens, dim=-1, dtype=wide)  # (B, N)
    longest = lengths.new_zeros(matching.mass.shape).scatter_reduce(1, matching.place, lengths, "amax")  # (B, M)
    mean_length = torch.linalg.vector_norm(mean, dim=-1, dtype=wide)
    # Tokens that cancel out have no direction to stretch: they stay at zero.
    stretch = torch.where(mean_length > 0, longest / mean_length.clamp_min(1e-20), 1.0)
    return (mean * stretch.unsqueeze(-1)).to(tokens.dtype)


def merge_by_pruning(tokens: Tensor, matching: Matching) -> Tensor:
    """Kept tokens stay as they are and the others are dropped. (B, N, C) -> (B, M, C)."""
    return tokens_at(tokens, matching.kept)


def unmerge_by_copy(tokens: Tensor, matching: Matching) -> Tensor:
    """Every token reads what the one that stands for it has become. (B, M, C) -> (B, N, C)."""
    return tokens_at(tokens, matching.place)


def _nearest(unit: Tensor, sources: Tensor, destinations: Tensor, one_for_batch: bool) -> tuple[Tensor, Tensor]:
    """How like each source (B, S) is to the destination most like it, and which of the D that is."""
    targets = unit.index_select(1, destinations).transpose(-1, -2)  # (B, C, D)
    best, nearest = [], []
    for some in sources.tensor_split(math.ceil(unit.shape[0] * sources.numel() * destinations.numel() / MOST_SCORES)):
        scores = unit.index_select(1, some) @ targets
        if one_for_batch:
            scores = scores.sum(dim=0, keepdim=True)
        values, indices = scores.max(dim=-1)
        best.append(values)
        nearest.append(indices)
    return torch.cat(best, dim=1), torch.cat(nearest, dim=1)


def _grouped(kept: Tensor, place: Tensor) -> Matching:
    """(B, M), (B, N) -> the matching, with rows that are merged together brought side by side."""
    batch, tokens = place.shape
    mass = torch.zeros(kept.shape, device=place.device).scatter_add(
        1, place, torch.ones(place.shape, device=place.device)
    )
    first_rows = torch.arange(batch, device=place.device).unsqueeze(1) * tokens
    by_place = place.argsort(dim=1, stable=True)  # (B, N)
    sizes = mass.long().flatten()
    return Matching(
        kept=kept,
        place=place,
        mass=mass,
        by_place=(by_place + first_rows).flatten(),
        starts=sizes.cumsum(0) - sizes,
        weights=mass.reciprocal().gather(1, place.gather(1, by_place)).flatten(),
    )


def _cells_of(grid: tuple[int, ...], cell: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens of each whole cell (K, c), row by row, and those at the edges that fill no cell (E,)."""
    whole = [length // side for length, side in zip(grid, cell, strict=True)]
    index = torch.arange(math.prod(grid), device=device).view(grid)
    edges, inner = [], index
    for axis, (count, side) in enumerate(zip(whole, cell, strict=True)):
        length = count * side
        edges.append(inner.narrow(axis, length, inner.shape[axis] - length).flatten())
        inner = inner.narrow(axis, 0, length)
    sides = [size for pair in zip(whole, cell, strict=True) for size in pair]  # (K1, c1, K2, c2, ...)
    axes = list(range(0, len(sides), 2)) + list(range(1, len(sides), 2))
    cells = inner.reshape(sides).permute(axes).reshape(math.prod(whole), math.prod(cell))
    return cells, torch.cat(edges)


@lru_cache(maxsize=64)
def _spread_order(cell: tuple[int, ...]) -> list[int]:
    """The positions of a cell in an order whose beginnings are spread out, the top left one first.

    Cells repeat over the grid, so distance goes around their edges.

    >>> _spread_order((2, 2))
    [0, 3, 1, 2]
    """
    places = list(itertools.product(*map(range, cell)))
    order = [0]
    while len(order) < len(places):
        nearest = {
            slot: min(_distance_around(place, places[taken], cell) for taken in order)
            for slot, place in enumerate(places)
            if slot not in order
        }
        order.append(max(nearest, key=lambda slot: (nearest[slot], -slot)))
    return order


def _distance_around(one: tuple[int, ...], other: tuple[int, ...], cell: tuple[int, ...]) -> int:
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return sum(min(gap, side - gap) ** 2 for gap, side in zip(gaps, cell, strict=True))
