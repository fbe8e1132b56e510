"""The merging error, measured at full steps and added back at merged ones (design: Correction).

A full step also runs merged, on the same tokens. With w for a span's output on all tokens, t for its output on
merged ones and U for unmerging, e = w - Ut is the merging error. At the merged steps that follow, t is fitted to what
it was at the last two full steps, t ~ a t1 + b t2, and the output is Ut + a e1 + b e2. The fit is by least squares for
each sample, with means over tokens removed; so it follows any scheduler and any number of steps, and its weights fall
as an image moves away from what was recorded.

The weights are linear in t. A full step solves for them once, and a merged step takes two products: on a GPU each
operation here is a launch for each span of each step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmerge.config.interfaces import Operator
from tokenmerge.engine.state import LARGE, BranchMemory, Memory
from tokenmerge.ops.tiles import add_weighted

CALIBRATIONS = 2  # a third gains a tenth of a decibel, for half as much memory again (docs/quality.md)
# Added to the divisor, as a share of it: the two full steps may hardly differ.
RIDGE = 0.01
# Added where nothing differs at all (a single token, or zeros).
TINY = 1e-12
# A span that gave next to nothing at a full step would ask for a factor of ten.
LARGEST_WEIGHT = 2.0


def unmerge_corrected(queries: Operator, tokens: Tensor, memory: Memory | None) -> Tensor:
    """(B, M, C) -> (B, N, C): unmerged, with the merging error of the last full steps if it was recorded."""
    if memory is None:
        return queries.unmerge(tokens)
    current = memory.current
    calibrates = current.calibrating and current.waiting
    if not calibrates and (current.waiting or not current.recorded):
        return queries.unmerge(tokens)
    if not memory.offloads:
        return _calibrate(current, queries, tokens) if calibrates else _corrected(current, queries, tokens)
    current.fetch(tokens.device, *(LARGE if calibrates else ("errors", "fit")))
    restored = _calibrate(current, queries, tokens) if calibrates else _corrected(current, queries, tokens)
    current.put_away(changed=calibrates)
    return restored


def _corrected(current: BranchMemory, queries: Operator, tokens: Tensor) -> Tensor:
    assert current.errors is not None
    weights = _weights(current, tokens)
    if hasattr(queries, "unmerge_with"):
        restored: Tensor = queries.unmerge_with(tokens, current.errors, weights)
        return restored
    return add_weighted(queries.unmerge(tokens), current.errors, weights)


def record_full(memory: Memory, output: Tensor) -> None:
    """Keep what a span gave on all tokens, in the place of its newest error, until the merged run of the same step."""
    current, output = memory.current, output.detach()
    if memory.offloads:
        current.fetch(output.device, "errors")
    if current.errors is None or not _is_for(current.errors, output):
        current.errors = _slots(output, output.dtype)
    elif not (current.waiting or current.calibrated_now):
        current.errors[:, 1].copy_(current.errors[:, 0])
    current.errors[:, 0].copy_(output)
    current.waiting = True
    if memory.offloads:
        current.put_away(changed=True)


@torch.no_grad()
def _calibrate(current: BranchMemory, queries: Operator, tokens: Tensor) -> Tensor:
    """Record the merging error; returns the output on all tokens, so that later spans see what they saw before."""
    errors = current.errors
    assert errors is not None
    full = errors[:, 0].clone()
    errors[:, 0].sub_(queries.unmerge(tokens))
    if current.merged is None or not _is_for(current.merged, tokens):
        wide = torch.promote_types(tokens.dtype, torch.float32)
        current.merged, current.fit = _slots(tokens, wide), _slots(tokens, wide)
        current.bounds = current.merged.new_zeros(2, tokens.shape[0], CALIBRATIONS, 1, 1)
    elif not current.calibrated_now:  # else this is another call of the same step
        current.merged[:, 1].copy_(current.merged[:, 0])
    current.merged[:, 0].copy_(_centred(tokens.to(current.merged.dtype)))
    _solve(current)
    current.recorded, current.calibrated_now, current.waiting = True, True, False
    return full


def _solve(current: BranchMemory) -> None:
    """Least squares of two unknowns, by hand: what the last leaves unexplained, by the one before it."""
    assert current.merged is not None
    assert current.fit is not None
    assert current.bounds is not None
    last, before = current.merged.unbind(dim=1)
    square, common = _dot(last, last), _dot(last, before)
    alone = last / (square + TINY)
    lasts, befores = (1 + RIDGE) * square + TINY, (1 + RIDGE) * _dot(before, before) + TINY
    share = (before - common * alone) / (befores - common.square() / lasts + TINY)
    current.fit.copy_(torch.stack([alone - share * (common / lasts), share], dim=1))
    # If the last full step gave the same for all tokens, its error stays as it is.
    first = (square < TINY).to(square.dtype)
    most = torch.stack([LARGEST_WEIGHT - (LARGEST_WEIGHT - 1) * first, torch.full_like(first, LARGEST_WEIGHT)], dim=1)
    least = torch.stack([(LARGEST_WEIGHT + 1) * first - LARGEST_WEIGHT, torch.full_like(first, -LARGEST_WEIGHT)], dim=1)
    current.bounds.copy_(torch.stack([least, most]))


def _weights(current: BranchMemory, tokens: Tensor) -> Tensor:
    """How much of each recorded error to add, (B, 2, 1, 1) in the type of the tokens."""
    assert current.fit is not None
    assert current.bounds is not None
    # In float32, and without the mean of the tokens, of which there is none in the fit.
    products = (current.fit * tokens.unsqueeze(1)).sum(dim=(2, 3), keepdim=True)
    least, most = current.bounds.unbind()
    if products.dtype == tokens.dtype or products.requires_grad or torch.compiler.is_compiling():
        return products.clamp(least, most).to(tokens.dtype)
    # Bounded and rounded by one launch.
    return torch.clamp(products, least, most, out=torch.empty_like(products, dtype=tokens.dtype))


def _slots(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, L, C) -> (B, 2, L, C) of zeros: room for two like it, in the same order of memory."""
    samples, length, channels = tokens.shape
    # Those of a UNet have channels first. On a CPU they are unmerged into the other order, which is faster there.
    if tokens.stride(-1) == 1 or tokens.device.type == "cpu":
        return tokens.new_zeros(samples, CALIBRATIONS, length, channels, dtype=dtype)
    return tokens.new_zeros(samples, CALIBRATIONS, channels, length, dtype=dtype).transpose(2, 3)


def _is_for(slots: Tensor, tokens: Tensor) -> bool:
    """Whether slots have room for these tokens."""
    samples, _, *form = slots.shape
    wide = torch.promote_types(tokens.dtype, slots.dtype)
    return (samples, *form) == tuple(tokens.shape) and slots.device == tokens.device and slots.dtype == wide


def _centred(tokens: Tensor) -> Tensor:
    """Tokens less their mean, which has no error to fit and would outweigh the rest."""
    centred = tokens - tokens.mean(dim=1, keepdim=True)
    # Once more: of channels a thousand times as large as what differs in them, rounding leaves a mean.
    return centred - centred.mean(dim=1, keepdim=True)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """(B, M, C), (B, M, C) -> (B, 1, 1)"""
    return (one * other).sum(dim=(1, 2), keepdim=True)
