"""What a plan remembers: steps, guidance branches, and when something is due."""

from __future__ import annotations

import pytest

from tokenmerge.config import Operators
from tokenmerge.plan import MOST_CALLS_PER_STEP, GroupPlan, MergePlan

HERE = "the same batch, size, dtype and device"


def run_group(group: GroupPlan) -> str:
    """What a block does with its group's plan: "select", "weights" or "reuse"."""
    due = group.current
    done = "select" if due.select_due else "weights" if due.weights_due else "reuse"
    due.operators = due.operators or Operators(None, None)
    due.select_due = due.weights_due = False
    return done


def follow(plan: MergePlan, timesteps: list[float | None]) -> list[str]:
    done = []
    for timestep in timesteps:
        plan.begin_call(timestep, HERE)
        done.append(run_group(plan.group("blocks")))
    return done


def test_fifty_steps_of_the_papers_schedule() -> None:
    done = follow(MergePlan(10, 5), [1000.0 - 20 * step for step in range(50)])
    assert [step for step, what in enumerate(done) if what == "select"] == [0, 10, 20, 30, 40]
    assert [step for step, what in enumerate(done) if what == "weights"] == [5, 15, 25, 35, 45]


def test_guidance_branches_have_plans_of_their_own() -> None:
    plan = MergePlan(10, 5)
    assert follow(plan, [900.0, 900.0, 800.0, 800.0]) == ["select", "select", "reuse", "reuse"]
    plan.begin_call(700.0, HERE)
    first = plan.group("blocks").current
    plan.begin_call(700.0, HERE)
    assert plan.group("blocks").current is not first


def test_heun_calls_the_first_timestep_once_and_later_ones_twice() -> None:
    assert follow(MergePlan(10, 5), [900.0, 800.0, 800.0, 700.0, 700.0]) == [
        "select",
        "reuse",
        "select",  # the second call of a step has no plan yet
        "reuse",
        "reuse",
    ]


def test_a_larger_timestep_is_a_new_generation() -> None:
    plan = MergePlan(10, 5)
    assert follow(plan, [900.0, 800.0, 900.0, 800.0]) == ["select", "reuse", "select", "reuse"]
    assert plan.generation == 2


@pytest.mark.parametrize("other", ["another batch", "another size"])
def test_a_change_of_shape_forgets(other: str) -> None:
    plan = MergePlan(10, 5)
    follow(plan, [900.0, 800.0])
    plan.begin_call(700.0, other)
    assert plan.group("blocks").current.operators is None
    assert run_group(plan.group("blocks")) == "select"


def test_one_step_generations_never_reuse_each_others_plan() -> None:
    assert follow(MergePlan(10, 5), [999.0] * 12) == ["select"] * 12


def test_calls_at_one_timestep_are_not_kept_without_end() -> None:
    plan = MergePlan(10, 5)
    follow(plan, [999.0] * 50)
    assert len(plan.group("blocks").branches) <= MOST_CALLS_PER_STEP


def test_calls_without_a_timestep_count_as_steps() -> None:
    assert follow(MergePlan(2, 2), [None] * 5) == ["select", "reuse", "select", "reuse", "select"]


def test_a_refresh_that_a_cache_skipped_is_done_at_the_next_call() -> None:
    plan = MergePlan(2, 2)
    follow(plan, [900.0, 800.0])
    plan.begin_call(700.0, HERE)  # due, but the blocks do not run
    plan.begin_call(600.0, HERE)
    assert run_group(plan.group("blocks")) == "select"


def test_forgetting_drops_every_operator() -> None:
    plan = MergePlan(10, 5)
    follow(plan, [900.0, 900.0, 800.0])
    group = plan.group("blocks")
    plan.forget()
    assert group.current.operators is None
    assert all(branch.operators is None for branch in group.branches)
    assert follow(plan, [700.0]) == ["select"]


def test_groups_are_refreshed_each() -> None:
    plan = MergePlan(10, 5)
    plan.begin_call(900.0, HERE)
    assert run_group(plan.group("down")) == "select"
    assert run_group(plan.group("down")) == "reuse"
    assert run_group(plan.group("up")) == "select"
