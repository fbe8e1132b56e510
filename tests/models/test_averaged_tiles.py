"""One token left of each tile, where whole steps tell what that loses: it is the mean, in the order of the grid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, operators_on, session_on
from short_runs import FAMILIES, TIMESTEPS, errors, generate
from tiny_models import TinyModel, made, tiny

import tokenmerge as tm
from tokenmerge.methods.pooled import PooledOperator


@pytest.mark.parametrize("what", FAMILIES, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_one_token_of_each_tile_is_its_mean_and_is_learnt_from(what: TinyModel, scope: Any) -> None:
    """And the order of the grid is kept, so that what a plan would choose does not matter."""
    model = made(what.build)
    before = generate(model, what)
    options: dict[str, Any] = {**SMALL, "ratio": 0.75, "tile": (2, 2), "scope": scope}
    with tm.merged(model, tm.ToMA(detail_every=0, **options)):
        plain = errors(before, generate(model, what))
    with tm.merged(model, tm.ToMA(detail_every=3, thin_keys=False, **options)):
        detailed = errors(before, generate(model, what))
        merging = [stack for stack in session_on(model).stacks if stack.program.merges]
        for stack in merging:
            operators = stack.operators_of(stack.described.merging[0])
            assert operators is not None
            operator = operators.queries
            assert isinstance(operator, PooledOperator)
            assert not any(row.gather for row in stack.program.spans)
            first = torch.arange(operator.grid[-1] // 2) * 2 + operator.grid[-1] + 1
            assert operator.destinations[0, : len(first)].tolist() == first.tolist()  # the last of its four
    assert merging
    assert [error == 0 for error in detailed] == [step % 3 == 1 for step in range(len(TIMESTEPS))]
    for step in (2, 3, 5, 6):
        assert detailed[step] < plain[step] * 0.3


@pytest.mark.parametrize(
    ("options", "pools"),
    [
        ({}, True),
        ({"detail_every": 0}, False),  # nothing would tell what is lost
        ({"selector": "grid"}, False),  # whose places are the user's choice
        ({"tile": (1, 2), "ratio": 0.5}, False),  # a second run would take half as long as the first
        ({"ratio": 0.5}, False),
        ({"kv_ratio": 0}, False),
        ({"tile": (3, 3), "ratio": 0.9}, False),  # 8 rows in threes: tiles differ
        ({"tile": (3, 8), "ratio": 0.96}, False),
        ({"tile": (4, 4), "ratio": 0.9375}, True),
        ({"tile": (4, 4), "ratio": 0.875}, False),
    ],
    ids=str,
)
def test_where_tiles_are_averaged(options: dict[str, Any], pools: bool) -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.ToMA(**{**SMALL, "tile": (2, 2), "ratio": 0.75, **options})):
        what.call(model, (1, 2), what.grid(8, 8))
        assert isinstance(operators_on(model).queries, PooledOperator) == pools


def test_no_destinations_are_counted_where_none_are_chosen() -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.ToMA(**{**SMALL, "tile": (2, 2), "ratio": 0.75, "detail_every": 3})) as handle:
        generate(model, what)
        measured = handle.explain().models[0].measured
    assert measured is not None
    assert (measured.calls, measured.whole, measured.selections, measured.weightings) == (7, 2, 0, 0)
    assert str(measured).startswith("7 calls, 2 of them whole, ")
    assert "destinations" not in str(measured)


def test_lower_bound_projects_such_tiles_like_any_other() -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.LowerBound(**{**SMALL, "tile": (2, 2), "ratio": 0.75, "detail_every": 3})) as handle:
        what.call(model, (1,), what.grid(8, 8))
        explanation = handle.explain()
    measured = explanation.models[0].measured
    assert measured is not None
    assert measured.selections == 1
    assert "mean of each tile" not in str(explanation)
