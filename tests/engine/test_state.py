"""What a generation keeps: operators for each group and branch, until they are due again."""

from __future__ import annotations

from tokenmerge.config.interfaces import Operators
from tokenmerge.engine.state import Group, State


def run(group: Group) -> str:
    """What a span does with its group's plan: "select", "weights" or "reuse"."""
    due = group.current
    done = "select" if due.select_due else "weights" if due.weights_due else "reuse"
    due.operators = due.operators or Operators(None, None)
    due.select_due = due.weights_due = False
    return done


def test_guidance_branches_have_their_own_plans() -> None:
    state = State()
    state.begin_call(0, 0, select=True, weights=True)
    assert run(state.group("blocks")) == "select"
    first = state.group("blocks").current
    state.begin_call(1, 0, select=True, weights=True)
    assert run(state.group("blocks")) == "select"
    assert state.group("blocks").current is not first
    state.begin_call(0, 1, select=False, weights=False)
    assert run(state.group("blocks")) == "reuse"
    state.begin_call(0, 2, select=False, weights=True)
    assert run(state.group("blocks")) == "weights"


def test_a_refresh_that_a_cache_skipped_is_done_at_the_next_call() -> None:
    state = State()
    state.begin_call(0, 0, select=True, weights=True)
    run(state.group("blocks"))
    state.begin_call(0, 1, select=True, weights=True)  # due, but the blocks do not run
    state.begin_call(0, 2, select=False, weights=False)
    assert run(state.group("blocks")) == "select"


def test_groups_are_refreshed_each() -> None:
    state = State()
    state.begin_call(0, 0, select=True, weights=True)
    assert [run(state.group(name)) for name in ("down", "down", "up")] == ["select", "reuse", "select"]


def test_forgetting_drops_every_operator_in_place() -> None:
    state = State()
    state.begin_call(1, 0, select=True, weights=True)
    group = state.group("blocks")
    run(group)
    state.forget()
    assert group.current.operators is None
    assert all(branch.operators is None for branch in group.branches.values())
    assert state.group("blocks") is group
