"""What merging loses between whole steps: the fit on merged tokens, and what is remembered for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tokenmerge.engine.detail import unmerged
from tokenmerge.engine.plan import Learnt, Memory
from tokenmerge.methods.pooled import pooled_operator


def learnt_of(lost: float, merged: Tensor) -> Learnt:
    return Learnt(merged - merged.mean(dim=1, keepdim=True), torch.full((1, 4, 2), lost))


def merged_like(tokens: Tensor, *learnt: Learnt) -> Tensor:
    """What is added to merged tokens (1, M, C) where so much was learnt before."""
    memory = Memory()
    memory.begin(0, step=9, new_plan=True)
    memory.current.learnt = learnt
    operator = pooled_operator((2, 2), (1, 2), 1, torch.device("cpu"))
    return (unmerged(operator, tokens, memory) - operator.spread(tokens)).flatten()


def test_what_is_lost_follows_what_merged_tokens_do() -> None:
    one, other = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), torch.tensor([[[0.0, 2.0], [0.0, -2.0]]])
    ones = torch.ones(8)
    # Half as large, or shifted as a whole, which is no detail.
    torch.testing.assert_close(merged_like(one / 2 + 7, learnt_of(5, one)), 2.5 * ones)
    torch.testing.assert_close(merged_like(other, learnt_of(5, one)), 0 * ones)
    # On from one whole step past the next, and half of it back: but for the hundredth by which it is held down.
    on = merged_like(2 * other - one, learnt_of(3, other), learnt_of(1, one))
    torch.testing.assert_close(on, (2 * 3 - 1 / 1.01 * 1) * ones)
    # The same tokens at both whole steps tell nothing apart.
    torch.testing.assert_close(merged_like(one / 2, learnt_of(3, one), learnt_of(1, one)), 1.5 * ones)


def test_where_tokens_do_not_differ_what_was_lost_is_lost_still() -> None:
    alike = torch.ones(1, 2, 2)
    for learnt in ([learnt_of(5, alike)], [learnt_of(5, alike), learnt_of(1, alike)]):
        torch.testing.assert_close(merged_like(alike * 3, *learnt), torch.full((8,), 5.0))


def test_no_weight_is_larger_than_two() -> None:
    """What a part gave at a whole step may have been next to nothing."""
    one, other = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), torch.tensor([[[0.0, 1.0], [0.0, -1.0]]])
    torch.testing.assert_close(merged_like(one * 50, learnt_of(5, one)), torch.full((8,), 10.0))
    both = merged_like(one * 50 - other * 50, learnt_of(5, one), learnt_of(1, other))
    torch.testing.assert_close(both, torch.full((8,), 10.0 - 2.0))


def test_a_step_with_several_calls_is_remembered_once() -> None:
    memory = Memory()
    operator = pooled_operator((2, 2), (1, 2), 1, torch.device("cpu"))
    for call, step in enumerate((1, 1, 6, 6, 11)):
        memory.begin(0, step, new_plan=False)
        if step == 11:
            memory.begin(0, step, new_plan=False)  # a call before it came to no end
        memory.current.output, memory.current.learns = torch.full((1, 4, 2), float(call)), True
        unmerged(operator, torch.zeros(1, 2, 2), memory)
        assert memory.current.output is None
    assert [float(each.lost.mean()) for each in memory.current.learnt] == [4, 3]


@pytest.mark.parametrize(("outlasts", "left"), [(True, 1), (False, 0)])
def test_what_was_learnt_of_other_tokens_is_forgotten(outlasts: bool, left: int) -> None:
    memory = Memory(outlasts_plans=outlasts)
    memory.begin(0, 1, new_plan=True)
    memory.current.learnt = (learnt_of(1, torch.ones(1, 2, 2)),)
    memory.begin(0, 2, new_plan=False)
    assert len(memory.current.learnt) == 1
    memory.begin(0, 6, new_plan=True)
    assert len(memory.current.learnt) == left
