"""Fewer keys where some steps run whole for their detail: at those, and at the merged ones between them.

What a whole step is run for is what each token gives, and in a UNet that hardly changes where self-attention on its
fine levels reads few keys (docs/quality.md, `ToMA.keys`): the whole picture is seen on its coarser levels anyway. There
it is most of what a step costs. Merged steps read as few: one of the tokens that are left of each tile.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tokenmerge.methods.interfaces import Layout
from tokenmerge.ops.regions import regions_of
from tokenmerge.ops.selection import select_random

# Keys lie as far apart as tokens two levels below the finest, where a model has so many; one below in any other.
FARTHEST, NEAREST = 4, 2


def key_distance(downsample: int, coarsest: int) -> int:
    """Tokens a side, on one level, of the tile that one key is read of.

    downsample, coarsest: how much coarser its grid, and the coarsest in the model, are than the finest.

    >>> [key_distance(level, coarsest=8) for level in (1, 2, 4, 8)]
    [4, 2, 1, 1]
    """
    return max(1, max(NEAREST, min(FARTHEST, coarsest)) // downsample)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve training too
def thinned(grid: tuple[int, ...], side: int, device: torch.device) -> Tensor | None:
    """(K,): tokens of the grid, one drawn from every tile; None where those do not divide it, nor smaller ones.

    All stand for as many, so that attention needs no weights for them.
    """
    while side > 1 and (grid[-1] % side or grid[-2] % side):
        side //= 2
    if side <= 1:
        return None
    regions = regions_of(grid, (*[1] * (len(grid) - 2), side, side))
    available = torch.ones(regions.count, regions.size, dtype=torch.bool)
    picks = select_random(available.unsqueeze(0), 1, available)[0]  # (R, 1)
    return regions.order.view(regions.count, regions.size).gather(1, picks).flatten().to(device)


@torch.inference_mode(False)
def thinned_merged(layout: Layout, side: int, device: torch.device) -> Tensor | None:
    """(K,): merged tokens, the first of every region; None where regions are larger than what a key is read of.

    The first that facility location picks is most like all others of its region.
    """
    each = layout.kept_of_each
    if each <= 1 or layout.regions is None or layout.regions.size > side * side:
        return None
    return torch.arange(0, layout.kept, each, device=device)
