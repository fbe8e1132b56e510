"""Under autocast the model computes in half precision, and plans are made in full all the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import SMALL, session_on
from tiny_models import made, tiny

import tokenmerge as tm
from tokenmerge.methods.toma import PseudoInverseToMA


def closeness(similarity: torch.Tensor, count: int, available: torch.Tensor) -> torch.Tensor:
    """A selector that looks at what it is given."""
    assert similarity.dtype == torch.float32
    return similarity.sum(dim=-1).topk(count, dim=-1).indices


@pytest.mark.parametrize("scope", ["site", "stack"])
@pytest.mark.parametrize(
    "config",
    [tm.ToMA(tile=(4, 4), selector=closeness, **SMALL), PseudoInverseToMA(tile=(4, 4), **SMALL)],
    ids=["selector", "pinv"],
)
def test_plans_are_made_in_full_precision(scope: Any, config: tm.ToMA) -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    tm.apply(model, dataclasses.replace(config, scope=scope))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        image = pixart.call(model, [1], (8, 8))
        assert torch.is_autocast_enabled("cpu")
    assert image.isfinite().all()
    for stack in session_on(model).stacks:
        for block in stack.described.merging:
            operators = stack.operators_of(block)
            assert operators is not None
            operator = operators.queries
            assert operator is not None
            assert operator.mass is not None
            assert operator.mass.sum() == pytest.approx(64, rel=1e-5)
