"""Fewer keys at the steps that run whole for their detail.

What such a step is run for is what each token gives, and in a UNet that hardly changes where self-attention on the
finest level reads one key of every 2 x 2 tile (docs/quality.md, `ToMA.keys`). There it is most of what a step costs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tokenmerge.ops.regions import regions_of
from tokenmerge.ops.selection import select_random


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept must serve training too
def thinned(grid: tuple[int, ...]) -> Tensor | None:
    """(K,): tokens of the grid, one drawn from every 2 x 2 tile; None where those do not divide it.

    All stand for as many, so that attention needs no weights for them.
    """
    regions = regions_of(grid, (*[1] * (len(grid) - 2), 2, 2))
    if regions.padded:
        return None
    available = torch.ones(regions.count, regions.size, dtype=torch.bool)
    picks = select_random(available.unsqueeze(0), 1, available)[0]  # (R, 1)
    return regions.order.view(regions.count, regions.size).gather(1, picks).flatten()
