"""Which steps are skipped: no model is built here."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tokenmerge.engine.schedule import Kind, Policy, Schedule, Step, StepCounts, Timeline, count_steps, steps_of
from tokenmerge.engine.skipped_steps import FEWEST_STEPS, computed_steps


def numbers(steps: list[Step], kind: Kind) -> list[int]:
    return [step.number for step in steps if step.kind is kind]


@pytest.mark.parametrize("speedup", [1.25, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("count", [20, 28, 50, 100])
def test_the_first_and_the_last_step_are_computed_and_gaps_grow(count: int, speedup: float) -> None:
    computed = sorted(computed_steps(count, speedup))
    assert computed[0] == 0
    assert computed[-1] == count - 1
    assert len(computed) == round(count / speedup)
    gaps = [after - before for before, after in pairwise(computed)]
    assert all(later >= earlier - 1 for earlier, later in pairwise(gaps))  # but for rounding
    assert gaps[0] <= 2


@pytest.mark.parametrize(("count", "speedup"), [(6, 2.0), (6, 5.0), (8, 2.0), (10, 3.0), (12, 3.0), (16, 8.0)])
def test_very_few_computed_steps_are_spread_evenly(count: int, speedup: float) -> None:
    computed = sorted(computed_steps(count, speedup))
    assert computed[0] == 0
    assert len(computed) == max(round(count / speedup), 3)
    gaps = [after - before for before, after in pairwise([*computed, count])]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("count", range(1, FEWEST_STEPS))
def test_images_of_few_steps_skip_none(count: int) -> None:
    assert numbers(steps_of(Policy(step_speedup=3.0), count), Kind.SKIPPED) == []


def test_computed_steps_run_full_where_no_token_is_merged() -> None:
    policy = Policy(step_speedup=2.0, merges=False)
    for count in (1, 4, 5):
        assert {step.kind for step in steps_of(policy, count)} == {Kind.FULL}
    for count in (6, 20):
        assert {step.kind for step in steps_of(policy, count)} == {Kind.FULL, Kind.SKIPPED}


def test_a_last_step_that_changes_nothing_is_skipped_and_the_one_before_it_is_not() -> None:
    timeline = Timeline(10, (-0.1,) * 9 + (-0.001,))
    schedule = Schedule.begin(Policy(step_speedup=2.0), timeline)
    kinds = [schedule.step.kind]
    for number in range(1, 10):
        schedule = schedule.after(number / 10)
        kinds.append(schedule.step.kind)
    assert kinds[8] is not Kind.SKIPPED
    assert kinds[9] is Kind.SKIPPED
    assert kinds.count(Kind.SKIPPED) == 5


def test_other_kinds_are_counted_over_the_computed_steps() -> None:
    every_step = steps_of(Policy(select_every=4, full_every=4), 10)
    with_skipped = steps_of(Policy(select_every=4, full_every=4, step_speedup=2.0), 20)
    left = [(step.kind, step.select, step.weights) for step in with_skipped if step.kind is not Kind.SKIPPED]
    assert left == [(step.kind, step.select, step.weights) for step in every_step]


@pytest.mark.parametrize("count", [10, 20, 50])
def test_without_a_sampler_the_beginning_and_the_end_are_computed(count: int) -> None:
    schedule = Schedule.begin(Policy(step_speedup=2.0), None)
    steps = [schedule.step]
    for number in range(1, count):
        schedule = schedule.after(number / count)
        steps.append(schedule.step)
    skipped = numbers(steps, Kind.SKIPPED)
    assert skipped
    assert min(skipped) >= 4
    assert max(skipped) < 0.75 * count
    assert all(after - before > 1 for before, after in pairwise(skipped))


def test_without_a_sampler_few_large_steps_are_all_computed() -> None:
    schedule = Schedule.begin(Policy(step_speedup=3.0), None)
    for number in range(1, 5):
        schedule = schedule.after(number / 5)
        assert schedule.step.kind is not Kind.SKIPPED


@pytest.mark.parametrize("shift", [1.0, 3.0, 6.0, 12.0])
@pytest.mark.parametrize("count", range(2, 12))
def test_without_a_sampler_the_last_step_is_computed_however_long_it_is(count: int, shift: float) -> None:
    """Shifted timesteps fall further at each step: of five with a shift of 6 the last one removes 60 % of the noise."""
    schedule = Schedule.begin(Policy(step_speedup=3.0), None)
    for number in range(1, count):
        even = 1 - number / count
        schedule = schedule.after(1 - shift * even / (1 + (shift - 1) * even))
    assert schedule.step.kind is not Kind.SKIPPED


def test_where_most_steps_are_computed_the_last_one_is() -> None:
    assert sorted(computed_steps(6, 1.5)) == [0, 1, 3, 5]
    assert sorted(computed_steps(7, 2.0)) == [0, 1, 3, 6]


def test_uncorrected_gaps_grow_less() -> None:
    assert sorted(computed_steps(20, 2.0, corrected=False)) == [0, 1, 3, 5, 7, 9, 11, 14, 16, 19]
    assert sorted(computed_steps(6, 1.5, corrected=False)) == [0, 1, 3, 5]


def test_counts_know_skipped_steps() -> None:
    assert count_steps(Policy(step_speedup=2.0), 20) == StepCounts(select=10, weights=0, steady=0, full=0, skipped=10)
    many = count_steps(Policy(step_speedup=4.0), None)
    assert many.skipped == 3 * many.select
    assert count_steps(Policy(), 20).skipped == 0
