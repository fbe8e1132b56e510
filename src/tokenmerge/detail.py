"""The detail that merging takes away, given back from the last step that ran whole.

A step that runs whole runs merged as well, on the same tokens: with w for what a part gave whole, t for what it gave
merged and U for unmerging, w - Ut is what merging loses. From step to step that changes little, and steadily: merged
steps give Ut and what was lost at the last whole step, moved on half as far as it moved from the one before to that.
"""

from __future__ import annotations

from torch import Tensor

from tokenmerge.operators import Operator
from tokenmerge.ops.picking import picked
from tokenmerge.plan import BranchMemory, Memory

# How much of a change is taken to go on: all of it overshoots, none of it lags behind (docs/quality.md).
TREND = 0.5


def unmerged(queries: Operator, tokens: Tensor, memory: Memory | None, picks: bool = False) -> Tensor:
    """(B, M, C) -> (B, N, C), with the detail of the last whole step where that is remembered.

    picks: the tokens were picked and not merged.
    """
    if memory is None:
        return queries.unmerge(tokens)
    now = memory.current
    if now.output is None:
        spread = queries.unmerge(tokens)
        return spread if now.lost is None else spread + now.lost
    if now.learns:
        return _learn(now, now.output, queries.unmerge(tokens))
    return _apart(queries, tokens, now.output, picks)


def remember(memory: Memory, whole: Tensor) -> None:
    # A copy: the model may go on to change its own, and CUDA graphs reuse theirs.
    memory.current.output = whole.detach().clone()


def _learn(now: BranchMemory, whole: Tensor, spread: Tensor) -> Tensor:
    """Note what merging loses of a whole step's output, and how that moves; gives the output."""
    lost = whole - spread
    if now.lost is not None and now.age:  # a step may have several calls
        before = now.lost if now.drift is None else now.lost - now.drift * now.age
        now.drift = (lost - before) * (TREND / now.age)
    now.lost, now.output, now.age = lost, None, 0
    return whole


def _apart(queries: Operator, tokens: Tensor, whole: Tensor, picks: bool) -> Tensor:
    """What is common of now, and what sets tokens apart of then: w + U(t - Mw), with M for merging.

    Where a whole step does not run merged as well (`MergeConfig.learns`, `RootSite.enter`).
    """
    if picks:
        assert queries.destinations is not None, "what was picked sits somewhere"
        return whole + queries.unmerge(tokens - picked(whole, queries.destinations))
    return whole + queries.unmerge(tokens - queries.merge(whole))
