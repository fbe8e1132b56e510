"""Some tokens of a sequence, as they are, and tokens of a grid by their places along each axis."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def tokens_at(tokens: Tensor, indices: Tensor) -> Tensor:
    """(B, N, C), (B, M) -> (B, M, C): of each sample the tokens at its indices.

    >>> tokens_at(torch.arange(6.0).view(2, 3, 1), torch.tensor([[2, 0], [1, 1]])).flatten().tolist()
    [2.0, 0.0, 4.0, 4.0]
    """
    batch, count, channels = tokens.shape
    if tokens.device.type != "cpu":
        return tokens.gather(1, indices.unsqueeze(-1).expand(-1, -1, channels))  # one launch; slower on a CPU
    first = torch.arange(batch, device=tokens.device).unsqueeze(1) * count
    return tokens.reshape(-1, channels).index_select(0, (indices + first).flatten()).view(batch, -1, channels)


def crossed(lengths: Iterable[int], places: Iterable[Tensor]) -> Tensor:
    """Token indices of all combinations of the `places` along each axis, in a grid with sides of these `lengths`.

    >>> crossed((2, 4), [torch.tensor([0, 1]), torch.tensor([1, 3])]).tolist()
    [1, 3, 5, 7]
    """
    index: Tensor | None = None
    for length, along in zip(lengths, places, strict=True):
        index = along if index is None else (index.unsqueeze(1) * length + along).flatten()
    assert index is not None
    return index
