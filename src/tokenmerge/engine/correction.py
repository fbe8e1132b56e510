"""The merging error, measured at full steps and added back at merged ones (design: Correction).

A full step also runs merged, on the same tokens. With w for a span's output on all tokens, t for its output on
merged ones and U for unmerging, e = w - Ut is the merging error. At the merged steps that follow, t is fitted to what
it was at the last two full steps, t ~ a t1 + b t2, and the output is Ut + a e1 + b e2. The fit is by least squares for
each sample, with means over tokens removed; so it follows any scheduler and any number of steps, and its weights fall
as an image moves away from what was recorded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmerge.config.interfaces import Operator
from tokenmerge.engine.state import BranchMemory, Calibration, Memory
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
    if current.calibrating and current.full is not None:
        return _calibrate(current, current.full, queries, tokens)
    if not current.calibrations:
        return queries.unmerge(tokens)
    errors = [past.error for past in current.calibrations]
    weights = _weights(_centred(tokens), current.calibrations)
    if hasattr(queries, "unmerge_with"):
        restored: Tensor = queries.unmerge_with(tokens, errors, weights)
        return restored
    return add_weighted(queries.unmerge(tokens), errors, weights)


def record_full(memory: Memory, output: Tensor) -> None:
    """Keep what a span gave on all tokens, until the merged run of the same step."""
    # A copy: the model may go on to change its own, and CUDA graphs reuse theirs.
    memory.current.full = output.detach().clone()


def _calibrate(current: BranchMemory, full: Tensor, queries: Operator, tokens: Tensor) -> Tensor:
    """Record the merging error; returns the output on all tokens, so that later spans see what they saw before."""
    merged = _centred(tokens)
    earlier = current.calibrations[1:] if current.calibrated_now else current.calibrations  # the last call of a step
    common = _dot(merged, earlier[0].merged) if earlier else None
    error = (full - queries.unmerge(tokens)).contiguous()
    newest = Calibration(merged, error, _dot(merged, merged), common)
    current.calibrations = (newest, *earlier)[:CALIBRATIONS]
    current.calibrated_now, current.full = True, None
    return full


def _centred(tokens: Tensor) -> Tensor:
    """Tokens less their mean, which has no error to fit and would outweigh the rest."""
    wide = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return wide - wide.mean(dim=1, keepdim=True)


def _weights(now: Tensor, past: tuple[Calibration, ...]) -> list[Tensor]:
    """How much of each recorded error to add, each (B, 1, 1)."""
    last = past[0]
    alone = (_dot(now, last.merged) + TINY) / (last.square + TINY)
    if len(past) == 1:
        return [alone.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)]
    # The two equations of least squares, solved by hand: what the last leaves unexplained, by the one before it.
    assert last.common is not None
    lasts, befores = ((1 + RIDGE) * each.square + TINY for each in past)
    share = (_dot(now, past[1].merged) - alone * last.common) / (befores - last.common.square() / lasts + TINY)
    first = alone - share * last.common / lasts
    return [first.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT), share.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)]


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """(B, M, C), (B, M, C) -> (B, 1, 1)"""
    return (one * other).sum(dim=(1, 2), keepdim=True)
