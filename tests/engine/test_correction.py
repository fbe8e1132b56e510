"""The merging error between full steps: the fit on merged tokens, and what is recorded for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tokenmerge import TileMean
from tokenmerge.config.interfaces import BlockContext, Operator
from tokenmerge.engine.correction import record_full, unmerge_corrected
from tokenmerge.engine.state import Memory

Recorded = tuple[float, Tensor]  # the merging error everywhere, and the merged tokens at that step


def tile_means() -> Operator:
    """Two tiles of a 2 x 2 grid, one in each column."""
    config = TileMean(tile=(2, 1))
    plan = config.plan(torch.zeros(1, 4, 2), config.layout((2, 2)), BlockContext("block", 0, 1), None)
    assert plan.queries is not None
    return plan.queries


def added_to(tokens: Tensor, *newest_first: Recorded) -> Tensor:
    """What is added to merged tokens (1, M, C) after full steps that recorded these."""
    operator = tile_means()
    memory = Memory()
    for step, (error, merged) in enumerate(reversed(newest_first), start=1):
        memory.begin(0, step, new_plan=False)
        record_full(memory, operator.unmerge(merged) + error)
        memory.current.calibrating = True
        unmerge_corrected(operator, merged, memory)
    memory.begin(0, 9, new_plan=False)
    memory.current.calibrating = False
    return (unmerge_corrected(operator, tokens, memory) - operator.unmerge(tokens)).flatten()


def test_the_correction_follows_what_merged_tokens_do() -> None:
    one, other = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), torch.tensor([[[0.0, 2.0], [0.0, -2.0]]])
    ones = torch.ones(8)
    # Half as large, or shifted as a whole, which is no detail.
    torch.testing.assert_close(added_to(one / 2 + 7, (5, one)), 2.5 * ones)
    torch.testing.assert_close(added_to(other, (5, one)), 0 * ones)
    # On from one full step past the next, and half of it back: but for the hundredth by which it is held down.
    on = added_to(2 * other - one, (3, other), (1, one))
    torch.testing.assert_close(on, (2 * 3 - 1 / 1.01 * 1) * ones)
    # The same tokens at both full steps tell nothing apart.
    torch.testing.assert_close(added_to(one / 2, (3, one), (1, one)), 1.5 * ones)


def test_where_tokens_do_not_differ_the_error_stays() -> None:
    alike = torch.ones(1, 2, 2)
    for recorded in ([(5, alike)], [(5, alike), (1, alike)]):
        torch.testing.assert_close(added_to(alike * 3, *recorded), torch.full((8,), 5.0))


def test_no_weight_is_larger_than_two() -> None:
    """What a part gave at a full step may have been next to nothing."""
    one, other = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), torch.tensor([[[0.0, 1.0], [0.0, -1.0]]])
    torch.testing.assert_close(added_to(one * 50, (5, one)), torch.full((8,), 10.0))
    both = added_to(one * 50 - other * 50, (5, one), (1, other))
    torch.testing.assert_close(both, torch.full((8,), 10.0 - 2.0))


def test_a_step_with_several_calls_is_recorded_once() -> None:
    memory = Memory()
    operator = tile_means()
    for call, step in enumerate((1, 1, 6, 6, 11)):
        memory.begin(0, step, new_plan=False)
        if step == 11:
            memory.begin(0, step, new_plan=False)  # a call before it came to no end
        record_full(memory, torch.full((1, 4, 2), float(call)))
        memory.current.calibrating = True
        unmerge_corrected(operator, torch.zeros(1, 2, 2), memory)
        assert not memory.current.waiting
    assert memory.current.errors is not None
    assert memory.current.errors.mean(dim=(0, 2, 3)).tolist() == [4, 3]


def test_a_full_step_that_was_interrupted_leaves_no_trace() -> None:
    """What it recorded is no error yet; the next full step takes its place."""
    memory, operator, zeros = Memory(), tile_means(), torch.zeros(1, 2, 2)
    for step, (output, calibrates) in enumerate(((1.0, True), (7.0, False), (3.0, True)), start=1):
        memory.begin(0, step, new_plan=False)
        record_full(memory, torch.full((1, 4, 2), output))
        memory.current.calibrating = False
        assert not unmerge_corrected(operator, zeros, memory).any()
        if calibrates:
            memory.current.calibrating = True
            unmerge_corrected(operator, zeros, memory)
    assert memory.current.errors is not None
    assert memory.current.errors.mean(dim=(0, 2, 3)).tolist() == [3, 1]


def test_an_image_is_recorded_in_the_memory_of_the_one_before() -> None:
    """CUDA graphs read it where it was when they were captured."""
    memory, operator = Memory(), tile_means()
    addresses = set()
    for _ in range(2):
        for step in range(4):
            memory.begin(0, step, new_plan=False)
            record_full(memory, torch.ones(1, 4, 2))
            memory.current.calibrating = True
            unmerge_corrected(operator, torch.zeros(1, 2, 2), memory)
            addresses.add(tuple(tensor.data_ptr() for tensor in memory.current.tensors))
        memory.current.forget()
        assert not any(tensor.any() for tensor in memory.current.tensors[:2])
    assert len(addresses) == 1


@pytest.mark.parametrize(("outlasts", "left"), [(True, True), (False, False)])
def test_what_was_recorded_of_other_tokens_is_forgotten(outlasts: bool, left: bool) -> None:
    memory = Memory(outlasts_plans=outlasts)
    memory.begin(0, 1, new_plan=True)
    record_full(memory, torch.ones(1, 4, 2))
    memory.current.calibrating = True
    unmerge_corrected(tile_means(), torch.zeros(1, 2, 2), memory)
    memory.begin(0, 2, new_plan=False)
    assert memory.current.recorded
    memory.begin(0, 6, new_plan=True)
    assert memory.current.recorded == left
