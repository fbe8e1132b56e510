"""Which steps run full and when plans are refreshed: no model is built here."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from tokenmerge.engine.schedule import Kind, Policy, Schedule, Step, StepCounts, count_steps, steps_of

BALANCED = Policy(select_every=5, weights_every=5, full_every=6, within=0.35)


def numbers(steps: list[Step], kind: Kind) -> list[int]:
    return [step.number for step in steps if step.kind is kind]


def test_fifty_steps_of_the_papers_schedule() -> None:
    steps = steps_of(Policy(select_every=10, weights_every=5), 50)
    assert {step.kind for step in steps} == {Kind.MERGED}
    assert [step.number for step in steps if step.select] == [0, 10, 20, 30, 40]
    assert [step.number for step in steps if step.weights] == list(range(0, 50, 5))


def test_merging_at_every_third_step_runs_the_others_full() -> None:
    steps = steps_of(Policy(merge_every=3), 8)
    assert numbers(steps, Kind.MERGED) == [0, 3, 6]
    assert numbers(steps, Kind.FULL) == [1, 2, 4, 5, 7]


@pytest.mark.parametrize(
    ("count", "full"),
    [
        (1, [0]),
        (2, [0]),
        (4, [0, 2]),
        (6, [0, 3]),
        (8, [0, 3, 6]),
        (10, [0, 4, 8]),
        (12, [0, 5, 10]),
        (14, [0, 5, 10]),
        (15, [0, 6, 12]),
        (20, [0, 6, 12, 18]),
    ],
)
def test_few_steps_calibrate_more_often(count: int, full: list[int]) -> None:
    """Every sixth, and sooner where more than a third of the noise would go in between."""
    assert numbers(steps_of(BALANCED, count), Kind.CALIBRATE) == full
    by_count_alone = dataclasses.replace(BALANCED, within=float("inf"))
    assert numbers(steps_of(by_count_alone, count), Kind.CALIBRATE) == list(range(0, count, 6))


def test_the_first_step_calibrates_if_any_does() -> None:
    """Merged steps before it would have no correction, and errors of the first steps grow most."""
    assert Schedule.begin(BALANCED).step == Step(0, Kind.CALIBRATE, select=True, weights=True)
    assert Schedule.begin(Policy()).step.kind is Kind.MERGED


def test_two_steps_in_a_row_never_both_calibrate() -> None:
    policy = dataclasses.replace(BALANCED, within=0.01)
    for count in range(2, 41):
        full = numbers(steps_of(policy, count), Kind.CALIBRATE)
        assert all(after - before > 1 for before, after in pairwise(full))


def test_the_usual_spacing_of_few_timesteps_counts_as_it_is() -> None:
    """Leading and linear spacing end at no noise, so that of 12 steps each takes an eleventh of it."""
    schedule, full = Schedule.begin(BALANCED), []
    for number in range(12):
        schedule = schedule if number == 0 else schedule.after(1 - (914 - 83 * number) / 914)
        full += [number] * schedule.full
    assert full == [0, 4, 8]


def test_a_share_that_steps_add_up_to_is_not_missed_by_rounding() -> None:
    schedule, full = Schedule.begin(Policy(full_every=8, within=0.3)), []
    for number in range(10):
        schedule = schedule if number == 0 else schedule.after(1 - (1 - number / 10))
        full += [number] * schedule.full
    assert full == [0, 3, 6, 9]


def test_plans_change_at_full_steps_wherever_those_fall() -> None:
    """New destinations come due every five steps, and wait for the next step that calibrates."""
    assert [step.number for step in steps_of(BALANCED, 10) if step.select] == [0, 8]


def test_a_schedule_is_never_changed() -> None:
    first = Schedule.begin(BALANCED)
    second = first.after(0.1)
    assert (first.number, second.number) == (0, 1)
    assert first.after(0.1) == second


def test_steps_are_counted_by_kind() -> None:
    assert count_steps(Policy(select_every=10, weights_every=5), 20) == StepCounts(2, 2, 16, 0)
    assert count_steps(Policy(select_every=2, weights_every=2, merge_every=3), 6) == StepCounts(2, 0, 0, 4)
    assert count_steps(BALANCED, 10) == StepCounts(select=0, weights=0, steady=7, full=3)
    many = count_steps(BALANCED, None)
    assert many.full / many.total == pytest.approx(1 / 6)
    assert many.select == 0  # they are made in the merged run of full steps
