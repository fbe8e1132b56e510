"""Greedy facility location, a region to a program (plain form: ops/selection.py, ToMA's Algorithm 2).

In plain PyTorch every choice is five operations over all regions, which read and write all similarities. Here those
of a region stay in registers from the first choice to the last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 64 * 64  # similarities of a region: a tile of 8 x 8 tokens


@triton.jit
def select_kernel(  # type: ignore[no-untyped-def]
    similarity,  # (G, candidates, tokens) float32, contiguous
    available,  # (R, candidates) int8: R regions, repeated over the samples
    selected,  # (G, count) int64
    regions,
    candidates,
    tokens,
    count,
    CANDIDATES: tl.constexpr,  # powers of two, at least as large
    TOKENS: tl.constexpr,
):
    group = tl.program_id(0)
    row, column = tl.arange(0, CANDIDATES), tl.arange(0, TOKENS)
    there = row < candidates
    places = row[:, None] * tokens + column[None, :]
    valid = there[:, None] & (column < tokens)[None, :]
    # What each candidate would add. The first choice is by the similarities themselves, which may be negative.
    surplus = tl.load(similarity + group.to(tl.int64) * candidates * tokens + places, mask=valid, other=0.0)
    free = tl.load(available + (group % regions) * candidates + row, mask=there, other=0) > 0
    for position in range(count):
        score = tl.where(free, tl.sum(surplus, axis=1), float("-inf"))
        chosen = tl.argmax(score, axis=0, tie_break_left=True)
        tl.store(selected + group * count + position, chosen.to(tl.int64))
        free = free & (row != chosen)
        reached = tl.sum(tl.where((row == chosen)[:, None], surplus, 0.0), axis=0)
        surplus = tl.maximum(surplus - reached[None, :], 0.0)


def facility_location(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    """(B, R, n, m) -> (B, R, count), as `ops.selection.select_facility_location`."""
    batch, regions, candidates, tokens = similarity.shape
    selected = torch.empty(batch, regions, count, dtype=torch.long, device=similarity.device)
    select_kernel[(batch * regions,)](
        similarity.float().contiguous(),
        available.to(torch.int8),
        selected,
        regions,
        candidates,
        tokens,
        count,
        CANDIDATES=triton.next_power_of_2(candidates),
        TOKENS=triton.next_power_of_2(tokens),
    )
    return selected


def fits(similarity: Tensor) -> bool:
    """Whether a region's similarities fit into the registers of a program."""
    candidates, tokens = similarity.shape[-2:]
    return bool(triton.next_power_of_2(candidates) * triton.next_power_of_2(tokens) <= LARGEST)
