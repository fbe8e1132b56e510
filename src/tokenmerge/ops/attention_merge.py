"""Merge and unmerge as attention-like matrix products (ToMA, Eq. 6 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def assignment_weights(
    unit: Tensor,
    destinations: Tensor,
    temperature: float,
    valid: Tensor | None = None,
) -> Tensor:
    """A: how each token is shared out among the destinations of its group.

    unit          (G, n, C)  tokens of length one
    destinations  (G, D)     which of the n are destinations
    valid         (G, n)     False at padding, which gets no weight at all
    returns       (G, D, n)  float32; each valid column sums to 1
    """
    chosen = unit.gather(1, destinations.unsqueeze(-1).expand(-1, -1, unit.shape[-1]))
    scores = (chosen @ unit.transpose(-1, -2)).div_(temperature)
    weights = scores.softmax(dim=-2)
    # A sharp softmax leaves numbers so small that CPUs multiply by them thirty times slower than by zero.
    weights = functional.threshold(weights, 1e-12, 0.0)
    return weights if valid is None else weights * valid.unsqueeze(-2)


def merge_matrix(weights: Tensor) -> Tensor:
    """Ã: rows of A scaled to sum 1, so that merging averages. (G, D, n) -> (G, D, n)."""
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)


def unmerge_by_transpose(weights: Tensor) -> Tensor:
    """Aᵀ: each token reads back what its destinations have become. (G, D, n) -> (G, n, D)."""
    return weights.transpose(-1, -2).contiguous()


def unmerge_by_pinv(weights: Tensor) -> Tensor:
    """Ãᵀ(ÃÃᵀ)⁻¹: least squares, exact on what merging can express, and slow. (G, D, n) -> (G, n, D)."""
    merge = merge_matrix(weights)
    gram = merge @ merge.transpose(-1, -2)
    # The Gram matrix is singular if two destinations are alike, hence a pseudo-inverse of it too.
    inverse: Tensor = torch.linalg.pinv(gram, hermitian=True)
    return merge.transpose(-1, -2) @ inverse


def represented(weights: Tensor) -> Tensor:
    """How many tokens each destination stands for. (G, D, n) -> (G, D)."""
    return weights.sum(dim=-1)
