"""The detail that merging takes away, given back from the last steps that ran whole.

A step that runs whole runs merged as well, on the same tokens: with w for what a part gave whole, t for what it gave
merged and U for unmerging, l = w - Ut is what merging loses. What is lost at the steps in between follows what merged
tokens do: where theirs is a sum of what it was at the last two whole steps, t = a t1 + b t2, merged steps give
Ut + a l1 + b l2. The weights a and b are a least-squares fit, one for each sample, on what tokens differ by; so they
follow any scheduler and any number of steps, and fall where a picture has moved away from what was learnt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmerge.engine.plan import BranchMemory, Learnt, Memory
from tokenmerge.methods.interfaces import Operator
from tokenmerge.ops.picking import picked

REMEMBERED = 2  # whole steps: a third gains a tenth of a decibel, for half as much memory again (docs/quality.md)
# Added to what is divided by, as a share of it: the two whole steps may hardly differ.
RIDGE = 0.01
# And where nothing differs at all (a single token, or zeros): then what was lost is lost still.
NOTHING = 1e-12
# A part that gave next to nothing at a whole step would tell of a factor of ten.
MOST = 2.0


def unmerged(queries: Operator, tokens: Tensor, memory: Memory | None, picks: bool = False) -> Tensor:
    """(B, M, C) -> (B, N, C), with the detail of the last whole steps where that is remembered.

    picks: the tokens were picked and not merged.
    """
    if memory is None:
        return queries.unmerge(tokens)
    now = memory.current
    if now.output is not None:
        return _learn(now, now.output, queries, tokens) if now.learns else _apart(queries, tokens, now.output, picks)
    if not now.learnt:
        return queries.unmerge(tokens)
    restored = _spread(queries, tokens)
    for weight, learnt in zip(_weights(_differences(tokens), now.learnt), now.learnt, strict=True):
        restored = torch.addcmul(restored, weight.to(restored.dtype), learnt.lost)
    return restored


def remember(memory: Memory, whole: Tensor) -> None:
    # A copy: the model may go on to change its own, and CUDA graphs reuse theirs.
    memory.current.output = whole.detach().clone()


def _learn(now: BranchMemory, whole: Tensor, queries: Operator, tokens: Tensor) -> Tensor:
    """Note what merging loses of a whole step's output; gives that output."""
    learnt = Learnt(_differences(tokens), (whole - _spread(queries, tokens)).contiguous())
    earlier = now.learnt[1:] if now.learnt_now else now.learnt  # of several calls of a step the last counts
    now.learnt, now.learnt_now, now.output = (learnt, *earlier)[:REMEMBERED], True, None
    return whole


def _spread(queries: Operator, tokens: Tensor) -> Tensor:
    """Unmerge tokens to which detail is added: without edges between them, if the operator knows how."""
    spread: Tensor = getattr(queries, "spread", queries.unmerge)(tokens)
    return spread


def _differences(tokens: Tensor) -> Tensor:
    """What sets tokens apart: what all share has no detail, and would outweigh the rest."""
    wide = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return wide - wide.mean(dim=1, keepdim=True)


def _weights(now: Tensor, learnt: tuple[Learnt, ...]) -> list[Tensor]:
    """How much of what was lost at each whole step is lost now, each (B, 1, 1)."""
    last = learnt[0].merged
    alone = (_dot(now, last) + NOTHING) / (_dot(last, last) + NOTHING)
    if len(learnt) == 1:
        return [alone.clamp(-MOST, MOST)]
    # What the last step leaves unexplained, by the one before it: the two equations of least squares, solved by hand.
    before = learnt[1].merged
    common = _dot(last, before)
    lasts, befores = ((1 + RIDGE) * _dot(each, each) + NOTHING for each in (last, before))
    share = (_dot(now, before) - alone * common) / (befores - common.square() / lasts + NOTHING)
    return [(alone - share * common / lasts).clamp(-MOST, MOST), share.clamp(-MOST, MOST)]


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """(B, M, C), (B, M, C) -> (B, 1, 1)"""
    return (one * other).sum(dim=(1, 2), keepdim=True)


def _apart(queries: Operator, tokens: Tensor, whole: Tensor, picks: bool) -> Tensor:
    """What is common of now, and what sets tokens apart of then: w + U(t - Mw), with M for merging.

    Where a whole step does not run merged as well (`MergeConfig.learns`, `RootSite.enter`).
    """
    if picks:
        assert queries.destinations is not None, "what was picked sits somewhere"
        return whole + queries.unmerge(tokens - picked(whole, queries.destinations))
    return whole + queries.unmerge(tokens - queries.merge(whole))
