"""A subset of keys for self-attention on the fine levels of UNets, at full steps.

A full step is run for what each token gives. In a UNet that hardly changes if self-attention on its fine levels reads
few keys (docs/quality.md), because the coarser levels see the whole image anyway. There it is most of a step's cost.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tokenmerge.ops.regions import regions_of
from tokenmerge.ops.selection import select_random

# The distance between keys is that of tokens two levels below the finest, or one below if a model has no more.
FARTHEST, NEAREST = 4, 2


def key_distance(downsample: int, coarsest: int) -> int:
    """Tokens a side, on one level, of the tile that one key is read from.

    downsample, coarsest: how much coarser its grid, and the coarsest in the model, are than the finest.

    >>> [key_distance(level, coarsest=8) for level in (1, 2, 4, 8)]
    [4, 2, 1, 1]
    """
    return max(1, max(NEAREST, min(FARTHEST, coarsest)) // downsample)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve training too
def key_subset(grid: tuple[int, ...], side: int, device: torch.device) -> Tensor | None:
    """(K,): tokens of the grid, one sampled from every tile; None if neither these nor smaller tiles divide it.

    All stand for as many, so that attention needs no weights for them.
    """
    while side > 1 and (grid[-1] % side or grid[-2] % side):
        side //= 2
    if side <= 1:
        return None
    regions = regions_of(grid, (*[1] * (len(grid) - 2), side, side))
    available = torch.ones(regions.count, regions.size, dtype=torch.bool)
    selected = select_random(available.unsqueeze(0), 1, available)[0]  # (R, 1)
    return regions.order.view(regions.count, regions.size).gather(1, selected).flatten().to(device)
