"""Choosing destinations: greedy facility location (ToMA, Eq. 5 and Algorithm 2), and two plain baselines.

A selector is a function `(similarity, count, available) -> indices`:

    similarity  (B, R, n, m)   how well candidate i represents token j, in each region of each sample
    count       int            how many of the n candidates to choose
    available   (R, n)         False where a candidate must not be chosen (padding)
    indices     (B, R, count)  distinct, long, best first

The columns need not be the candidates themselves: concatenating the columns of a batch chooses one set that
serves all its samples, and scaling a column weighs its token. Both keep the objective submodular.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokenmerge.ops.hashing import scrambled
from tokenmerge.ops.kernels import takes_kernels

Selector = Callable[[Tensor, int, Tensor], Tensor]


def select_facility_location(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    """Greedily maximise the sum over tokens of the similarity to their best destination.

    The first has the largest row sum; every later one the largest gain sum_j relu(S[i, j] - c[j]), where c is
    what those so far reach. Ties go to the lowest index. Greedy is within 1 - 1/e of the best possible set, and
    its first k are exactly what choosing k would have given.

    >>> line = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> select_facility_location(line[None, None], 2, torch.ones(1, 3, dtype=torch.bool)).tolist()
    [[[0, 2]]]
    """
    selected: Tensor = torch.ops.tokenmerge.facility_location(similarity, count, available)
    return selected


# A custom operator, because torch.compile would otherwise unroll the greedy loop, and because this is the one
# place where a fused kernel can be registered for another device without any caller noticing.
@torch.library.custom_op("tokenmerge::facility_location", mutates_args=())
def _facility_location(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    return _greedy(similarity, count, available)


def _greedy(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    selected = torch.empty(*similarity.shape[:2], count, dtype=torch.long, device=similarity.device)
    # Added to the gains: minus infinity rules a candidate out, once it is taken or if it never was available.
    barred = torch.zeros(similarity.shape[:3], device=similarity.device).masked_fill_(~available, -torch.inf)
    scores = similarity.sum(dim=-1) + barred
    index = scores.argmax(dim=-1, keepdim=True)  # (B, R, 1)
    selected[..., :1] = index
    barred.scatter_(-1, index, -torch.inf)
    if count == 1:
        return selected
    # relu(S - c) for all pairs. With t its row at that token, the next one is relu(relu(S - c) - t): the cache c
    # never has to be formed, and the work is two passes in place.
    surplus = (similarity - _row(similarity, index)).clamp_(min=0)
    for position in range(1, count):
        scores = surplus.sum(dim=-1) + barred
        index = scores.argmax(dim=-1, keepdim=True)
        selected[..., position : position + 1] = index
        barred.scatter_(-1, index, -torch.inf)
        if position + 1 < count:
            surplus.sub_(_row(surplus, index)).clamp_(min=0)
    return selected


@_facility_location.register_kernel("cuda")
def _on_gpu(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    if takes_kernels(similarity):
        from tokenmerge.ops.kernels import selection as fused

        if fused.fits(similarity):
            return fused.facility_location(similarity, count, available)
    return _greedy(similarity, count, available)


@_facility_location.register_fake
def _(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    return similarity.new_empty(*similarity.shape[:2], count, dtype=torch.long)


def select_random(similarity: Tensor, count: int, available: Tensor, seed: int | Tensor = 0) -> Tensor:
    """Destinations sampled at random, the same ones for every sample, and for every call with the same `seed`."""
    indices = torch.arange(available.numel(), device=similarity.device).view(available.shape)
    score = scrambled(indices, seed).masked_fill(~available.to(similarity.device), -1)
    return score.topk(count, dim=-1).indices.expand(similarity.shape[0], -1, -1)


def select_grid(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    """Destinations at even distances through the region, whatever the tokens hold."""
    # Real indices come first in a region, so counting them is enough to keep clear of the padding.
    real = available.sum(dim=-1, keepdim=True)  # (R, 1)
    steps = torch.arange(count, device=similarity.device)  # (count,)
    selected = (2 * steps + 1) * real // (2 * count)
    return selected.expand(similarity.shape[0], -1, -1)


SELECTORS: dict[str, Selector] = {
    "facility_location": select_facility_location,
    "random": select_random,
    "grid": select_grid,
}


def _row(matrix: Tensor, index: Tensor) -> Tensor:
    """(B, R, n, m), (B, R, 1) -> (B, R, 1, m): row `index` of each region."""
    return matrix.gather(-2, index.unsqueeze(-1).expand(*index.shape, matrix.shape[-1]))
