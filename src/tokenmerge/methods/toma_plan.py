"""How ToMA makes a plan: choose destinations, weigh tokens by how near they are to each, build the operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.config.interfaces import BlockContext, Layout, Operators, operators_for
from tokenmerge.errors import ConfigError
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.ops.attention_merge import (
    assignment_weights,
    merge_matrix,
    represented,
    unmerge_by_pinv,
    unmerge_by_transpose,
)
from tokenmerge.ops.regions import Regions
from tokenmerge.ops.selection import SELECTORS, select_random
from tokenmerge.ops.similarity import cosine_similarity, unit_tokens

if TYPE_CHECKING:
    from tokenmerge.methods.toma import ToMA

SIMILARITY_STEPS = 4096
# Softness of the assignment: close to hard merging into the nearest destination. Above 0.05 images blur.
TEMPERATURE = 0.01


def make_plan(
    config: ToMA, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None
) -> Operators:
    """Operators for tokens (B, N, C); with `previous`, its destinations stay and only weights are computed."""
    assert layout.regions is not None
    regions = layout.regions
    in_regions = tokens if context.in_region_order else regions.gather(tokens)
    in_regions = in_regions[:, : regions.count * regions.size]
    unit = unit_tokens(in_regions).reshape(tokens.shape[0], regions.count, regions.size, -1)  # (B, R, n, C)
    selected = None if previous is None else previous.selected
    if selected is None:
        selected = _select(config, unit, (layout.kept - regions.protected) // regions.count, regions, context)
    operator = _operator(config, unit, selected, regions, tokens.dtype, context.in_region_order)
    return operators_for(config.keys, operator, selected)


def _select(config: ToMA, unit: Tensor, count: int, regions: Regions, context: BlockContext) -> Tensor:
    """(B, R, n, C) -> (B, R, count): indices of the destinations within their regions."""
    similarity = cosine_similarity(unit)  # (B, R, n, n)
    # Two tokens that are each other's nearest gain exactly the same. In steps this coarse sums are exact, so such a
    # tie goes to the first of them, and not to rounding, which depends on the rest of the batch.
    similarity = similarity.mul_(SIMILARITY_STEPS).round_().div_(SIMILARITY_STEPS)
    if regions.valid is None:
        available = torch.ones(similarity.shape[1:3], dtype=torch.bool, device=unit.device)
    else:
        available = regions.valid
        similarity = similarity * available.unsqueeze(-2)  # padding need not be represented
    if context.one_for_batch:
        # Side by side the samples' tokens are all there is to represent, so gains add up over the batch.
        similarity = torch.cat(similarity.unbind(), dim=-1).unsqueeze(0)
    if callable(config.selector):
        selected = config.selector(similarity, count, available)
        _check_indices(selected, (*similarity.shape[:2], count), similarity.shape[2])
        selected = selected.to(similarity.device)  # where a function builds its indices is not ours to choose
    else:
        selected = _chosen(config, similarity, count, available, context)
    return selected.expand(unit.shape[0], -1, -1)


def _chosen(config: ToMA, similarity: Tensor, count: int, available: Tensor, context: BlockContext) -> Tensor:
    """(B, R, count), by a selector of ours."""
    assert isinstance(config.selector, str)
    if config.resamples and context.seed is not None:
        return select_random(similarity, count, available, context.seed)
    return SELECTORS[config.selector](similarity, count, available)


def _indices(selected: Tensor, regions: Regions) -> Tensor:
    """(B, R, D) within regions -> (B, R * D) among all indices of the sample."""
    offsets = torch.arange(regions.count, device=selected.device).view(1, -1, 1) * regions.size
    return (selected + offsets).flatten(1)


def _operator(
    config: ToMA,
    unit: Tensor,
    selected: Tensor,
    regions: Regions,
    dtype: torch.dtype,
    in_region_order: bool,
) -> LinearOperator:
    batch, count, size, channels = unit.shape
    indices = _indices(selected, regions)
    if config.assigns_globally:
        valid = None if regions.valid is None else regions.valid.view(1, -1).expand(batch, -1)
        weights = assignment_weights(unit.reshape(batch, -1, channels), indices, TEMPERATURE, valid)
    else:
        valid = None if regions.valid is None else regions.valid.repeat(batch, 1)
        groups = unit.reshape(batch * count, size, channels)
        weights = assignment_weights(groups, selected.reshape(batch * count, -1), TEMPERATURE, valid)
    up = unmerge_by_pinv(weights) if config.unmerges_by == "pseudo-inverse" else unmerge_by_transpose(weights)
    mass = represented(weights).view(batch, -1)
    return LinearOperator(
        down=merge_matrix(weights).to(dtype),
        up=up.to(dtype),
        regions=None if in_region_order or regions.is_identity else regions,
        protected=regions.protected,
        mass=functional.pad(mass, (0, regions.protected), value=1.0),
        destinations=destinations_of(indices, regions, in_region_order),
    )


def destinations_of(indices: Tensor, regions: Regions, in_region_order: bool) -> Tensor:
    """(B, M): where the kept tokens sit, protected ones last."""
    if regions.protected:
        inside = regions.count * regions.size
        protected = torch.arange(inside, inside + regions.protected, device=indices.device)
        indices = torch.cat([indices, protected.expand(indices.shape[0], -1)], dim=1)
    return indices if in_region_order else regions.order[indices]


def _check_indices(selected: Any, shape: tuple[int, ...], candidates: int) -> None:
    """Raise where a selector of the user's own gave something that is no choice."""
    if not isinstance(selected, Tensor):
        raise ConfigError(
            f"selector returned {type(selected).__name__}: it must return the indices of the destinations, a tensor of "
            f"shape (samples, regions, {shape[-1]}), here {shape}."
        )
    if selected.shape != shape:
        raise ConfigError(
            f"selector returned indices of shape {tuple(selected.shape)}: for {shape[-1]} of {candidates} candidates "
            f"it must return (samples, regions, {shape[-1]}), here {shape}."
        )
    if selected.dtype != torch.long:
        raise ConfigError(f"selector returned indices of type {selected.dtype}: they must be torch.long.")
    if selected.is_meta or torch.compiler.is_compiling():
        return  # there is nothing to look at yet
    if selected.numel() and not 0 <= int(selected.min()) <= int(selected.max()) < candidates:
        raise ConfigError(
            f"selector returned indices from {int(selected.min())} to {int(selected.max())}: a region has {candidates} "
            f"candidates, counted from 0."
        )
