"""The detail that merging takes away, given back from the last step that ran whole.

Merged tokens carry what they have in common; what sets them apart is lost. From step to step it hardly changes, so a
whole step now and then is enough to know it: with M and U for merging and unmerging, and w for what a part gave at the
last whole step, a merged step gives w + U(t - Mw) instead of Ut. What is common is of now, what is apart is of then.
"""

from __future__ import annotations

from torch import Tensor

from tokenmerge.operators import Operator
from tokenmerge.ops.picking import picked
from tokenmerge.plan import Memory


def unmerged(queries: Operator, tokens: Tensor, memory: Memory | None, picks: bool = False) -> Tensor:
    """(B, M, C) -> (B, N, C), with the detail of the last whole step where that is remembered.

    picks: the tokens were picked and not merged, so that M is to pick, too.
    """
    whole = None if memory is None else memory.current.output
    if whole is None:
        return queries.unmerge(tokens)
    if picks:
        assert queries.destinations is not None, "what was picked sits somewhere"
        return whole + queries.unmerge(tokens - picked(whole, queries.destinations))
    return whole + queries.unmerge(tokens - queries.merge(whole))


def remember(memory: Memory, whole: Tensor) -> None:
    # A copy: the model may go on to change its own, and CUDA graphs reuse theirs.
    memory.current.output = whole.detach().clone()
