"""Cosine similarity between tokens, always in float32 (ToMA, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_tokens(tokens: Tensor) -> Tensor:
    """(..., C) -> (..., C) float32, each token scaled to length one.

    Zero tokens stay zero and tokens that are not finite become zero, so a similarity is always a number in [-1, 1]
    and one broken token cannot poison the choice made for the others.
    """
    wide = tokens.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    usable = length.isfinite() & (length > 0)
    # `where` once more at the end, because infinity times zero is not zero.
    return torch.where(usable, wide * length.reciprocal(), 0.0)


def cosine_similarity(unit: Tensor) -> Tensor:
    """(..., n, C) unit tokens -> (..., n, n) similarity of each with each."""
    return unit @ unit.transpose(-1, -2)
