"""Cosine similarity between tokens, always in float32 (ToMA, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_tokens(tokens: Tensor) -> Tensor:
    """(..., C) -> (..., C) float32, each token scaled to length one.

    Zero tokens stay zero and tokens that are not finite become zero, so a similarity is always a number in [-1, 1]
    and one broken token cannot poison the choice made for the others.
    """
    finite = torch.nan_to_num(tokens.float(), nan=0.0, posinf=0.0, neginf=0.0)
    # Scaling by the largest entry first keeps huge half-precision activations from overflowing when squared.
    scaled = finite / finite.abs().amax(dim=-1, keepdim=True).clamp_min(1e-20)
    return scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(1e-20)


def cosine_similarity(unit: Tensor) -> Tensor:
    """(G, n, C) unit tokens -> (G, n, n) similarity of each with each."""
    return unit @ unit.transpose(-1, -2)
