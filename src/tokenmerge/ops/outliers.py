"""The tokens that are least like their neighbours. A mean erases them, and others may attend to little else.

Some models gather what every token needs to know in a handful of tokens, several times as long as the rest (attention
sinks, registers).
"""

from __future__ import annotations

import torch
from torch import Tensor


def outliers_of(tokens: Tensor, owner: Tensor, count: int, tiles: int, one_for_batch: bool = False) -> Tensor:
    """(B, K): the tokens farthest from the mean of their tile.

    tokens: (B, N, C). owner: (N,) the tile of each token. one_for_batch: the same ones for every sample.

    >>> tokens = torch.tensor([[1.0], [1.0], [9.0], [1.0], [2.0], [2.0]])
    >>> outliers_of(tokens.unsqueeze(0), torch.tensor([0, 0, 0, 1, 1, 1]), count=1, tiles=2).tolist()
    [[2]]
    """
    wide = tokens.detach().to(torch.promote_types(tokens.dtype, torch.float32))
    means = torch.zeros(wide.shape[0], tiles, wide.shape[2], dtype=wide.dtype, device=wide.device)
    means.index_add_(1, owner, wide)
    means = means / sizes_of(owner, tiles).to(means).view(1, -1, 1)
    distances = (wide - means.index_select(1, owner)).square().sum(dim=-1)  # (B, N)
    if one_for_batch:
        distances = distances.sum(dim=0, keepdim=True).expand_as(distances)
    return distances.topk(count, dim=1).indices


def sizes_of(owner: Tensor, tiles: int) -> Tensor:
    """(tiles,): how many tokens each tile has."""
    ones = torch.ones(owner.shape, dtype=torch.float32, device=owner.device)
    return torch.zeros(tiles, dtype=torch.float32, device=owner.device).index_add_(0, owner, ones)


def left_in_tiles(outliers: Tensor, owner: Tensor, tiles: int) -> Tensor:
    """(B, tiles): how many tokens are left of each tile without the outliers (B, K)."""
    taken = torch.zeros(outliers.shape[0], tiles, dtype=torch.float32, device=owner.device)
    taken.scatter_add_(1, owner[outliers], torch.ones(outliers.shape, dtype=torch.float32, device=owner.device))
    return sizes_of(owner, tiles) - taken
