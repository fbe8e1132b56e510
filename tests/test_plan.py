"""What a plan remembers: steps, guidance branches, and when something is due."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tokenmerge import ToMA
from tokenmerge.engine.plan import MOST_BRANCHES, GroupPlan, MergePlan
from tokenmerge.methods.interfaces import Operators

HERE = "the same batch, size, dtype and device"


def run_group(group: GroupPlan) -> str:
    """What a block does with its group's plan: "select", "weights" or "reuse"."""
    due = group.current
    done = "select" if due.select_due else "weights" if due.weights_due else "reuse"
    due.operators = due.operators or Operators(None, None)
    due.select_due = due.weights_due = False
    return done


def follow(plan: MergePlan, calls: Sequence[float | tuple[float, str] | None]) -> list[str]:
    """Calls at timesteps, or at timesteps with a text."""
    done = []
    for call in calls:
        timestep, text = call if isinstance(call, tuple) else (call, None)
        plan.begin_call(timestep, HERE, text)
        done.append(run_group(plan.group("blocks")))
    return done


def test_fifty_steps_of_the_papers_schedule() -> None:
    done = follow(MergePlan(10, 5), [1000.0 - 20 * step for step in range(50)])
    assert [step for step, what in enumerate(done) if what == "select"] == [0, 10, 20, 30, 40]
    assert [step for step, what in enumerate(done) if what == "weights"] == [5, 15, 25, 35, 45]


def test_guidance_branches_have_plans_of_their_own() -> None:
    plan = MergePlan(10, 5)
    calls = [(timestep, text) for timestep in (900.0, 800.0) for text in ("prompt", "negative")]
    assert follow(plan, calls) == ["select", "select", "reuse", "reuse"]
    plan.begin_call(700.0, HERE, "prompt")
    first = plan.group("blocks").current
    plan.begin_call(700.0, HERE, "negative")
    assert plan.group("blocks").current is not first


def test_calling_a_timestep_again_is_the_same_step() -> None:
    """Heun does from the second timestep on, PNDM at the second one."""
    plan = MergePlan(10, 5)
    assert follow(plan, [900.0, 800.0, 800.0, 700.0, 700.0]) == ["select", "reuse", "reuse", "reuse", "reuse"]
    assert plan.step == 2


@pytest.mark.parametrize("begins_at", [900.0, 800.0, 300.0])
def test_another_text_is_another_picture(begins_at: float) -> None:
    """Timesteps alone do not tell: a picture drawn after another may begin where that has ended, or below."""
    plan = MergePlan(10, 5)
    follow(plan, [(900.0, "one"), (800.0, "one")])
    assert follow(plan, [(begins_at, "two"), (begins_at - 1, "two")]) == ["select", "reuse"]
    assert plan.generation == 2
    assert plan.step == 1


def test_after_a_picture_of_one_step_the_next_has_its_own_plan() -> None:
    plan = MergePlan(10, 5)
    follow(plan, [(999.0, "one")])
    plan.begin_call(999.0, HERE, "two")
    run_group(plan.group("blocks"))
    own = plan.group("blocks").current
    plan.begin_call(749.0, HERE, "two")
    assert plan.group("blocks").current is own
    assert plan.step == 1


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


def test_plans_of_many_texts_are_not_kept_without_end() -> None:
    plan = MergePlan(10, 5)
    assert follow(plan, [(999.0, f"text {number}") for number in range(50)]) == ["select"] * 50
    assert len(plan.group("blocks").branches) <= MOST_BRANCHES


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


def test_the_first_step_knows_nothing_of_an_earlier_one() -> None:
    """Two pictures of a single step each, with the same text: the second looks like the first step once more."""
    plan = MergePlan(10, 5)
    for output in (torch.zeros(1), torch.ones(1)):
        plan.begin_call(999.0, HERE, "a cat")
        memory = plan.memory("block")
        assert memory.current.output is None
        memory.current.output = output
    plan.begin_call(500.0, HERE, "a cat")
    assert memory.current.output is output


def whole_steps(plan: MergePlan, steps: int) -> list[int]:
    """Which of so many steps run whole, each with two guidance branches, the noise evenly spread over them."""
    whole = []
    for step in range(steps):
        of_texts = []
        for text in ("prompt", "negative"):
            plan.begin_call(1000 - 1000 / steps * step, HERE, text)
            of_texts.append(plan.whole)
        assert len(set(of_texts)) == 1
        whole += [step] * of_texts[0]
    return whole


@pytest.mark.parametrize(
    ("steps", "whole"),
    [
        (1, []),
        (2, [1]),
        (4, [1, 3]),
        (6, [1, 4]),
        (8, [1, 4, 7]),
        (10, [1, 5, 9]),
        (12, [1, 6, 11]),
        (14, [1, 6, 11]),
        (15, [1, 7, 13]),
        (20, [1, 7, 13, 19]),
    ],
)
def test_few_steps_run_whole_more_often(steps: int, whole: list[int]) -> None:
    """Every sixth, and sooner where more than a third of the noise would go in between."""
    plan = MergePlan(5, 5, whole_every=6, whole_within=0.35, learns=True)
    assert whole_steps(plan, steps) == whole
    assert whole_steps(plan, steps) == whole  # of the next picture too
    exact = MergePlan(5, 5, whole_every=6, learns=True)
    assert whole_steps(exact, steps) == [step for step in range(steps) if step % 6 == 1]


def test_the_usual_spacing_of_few_timesteps_counts_as_it_is() -> None:
    """Leading and linear spacing end at no noise, so that of 12 steps each takes an eleventh of it."""
    plan = MergePlan(5, 5, whole_every=6, whole_within=0.35, learns=True)
    whole = []
    for step in range(12):
        plan.begin_call(914.0 - 83 * step, HERE)
        whole.append(plan.whole)
    assert [step for step, each in enumerate(whole) if each] == [1, 5, 9]


@pytest.mark.parametrize("scale", [1000, 1], ids=["of 1000", "of 1, float32"])
def test_a_share_that_steps_add_up_to_is_not_missed_by_rounding(scale: int) -> None:
    plan = MergePlan(5, 5, whole_every=8, whole_within=0.3)
    whole = []
    for step in range(10):
        plan.begin_call(float(torch.tensor(scale * (1 - step / 10))), HERE)
        whole.append(plan.whole)
    assert [step for step, each in enumerate(whole) if each] == [1, 4, 7]


@pytest.mark.parametrize(
    "config",
    [ToMA(), ToMA(ratio=0.75), ToMA(detail_every=8, detail_within=0.5), ToMA(detail_within=0.01), ToMA(detail_every=3)],
    ids=str,
)
def test_a_config_knows_how_many_steps_run_whole(config: ToMA) -> None:
    for steps in range(1, 41):
        plan = MergePlan(5, 5, whole_every=config.whole_every, whole_within=config.whole_within)
        assert len(whole_steps(plan, steps)) == pytest.approx((1 - config.share_merged(steps)) * steps)


def test_where_no_timestep_says_how_much_noise_is_gone_steps_are_counted() -> None:
    plan = MergePlan(5, 5, whole_every=3, whole_within=0.01)
    whole = []
    for _ in range(8):
        plan.begin_call(None, HERE)
        whole.append(plan.whole)
    assert [step for step, each in enumerate(whole) if each] == [1, 4, 7]


def test_plans_change_at_whole_steps_wherever_those_fall() -> None:
    """Where they tell what merging loses: new destinations come up every five steps, and wait for the next of them."""
    plan = MergePlan(5, 5, whole_every=6, whole_within=0.35, learns=True)
    done = follow(plan, [1000.0 - 100 * step for step in range(10)])
    assert [step for step, what in enumerate(done) if what == "select"] == [0, 1, 5]
