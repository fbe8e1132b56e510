"""The ends of what can be given: broken tokens, no tokens, one token, no samples. Each has one defined outcome.

- A token that is not finite stays so: merging neither hides it nor raises, and other samples never notice.
- Tokens that are all zero are merged as equals.
- A grid with nothing to merge, and a call without samples, are errors that say so.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from checks import SMALL, has_scope, in_turn
from tiny_models import TINY_MODELS, TinyModel, made
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.config.interfaces import BlockContext
from tokenmerge.errors import ConfigError, MergeRuntimeError, TokenMergeError
from tokenmerge.ops.regions import regions_of
from tokenmerge.ops.selection import SELECTORS, select_facility_location

TINY: dict[str, Any] = {**SMALL, "min_tokens": 0}
METHODS: list[tm.MergeConfig] = [
    tm.ToMA(ratio=0.75, tile=(2, 2), **TINY),
    tm.ToMA(region="stripe+global", **TINY),
    dataclasses.replace(tm.ToMA.paper_pinv(), tile=4, **TINY),
    tm.TileMean(tile=2, **TINY),
    tm.SampledKeys(**TINY),
    tm.ToMeSD(**TINY),
    tm.ToFu(prune=0.0, **TINY),
    tm.ToFu(prune=1.0, **TINY),
    tm.ToDo(**TINY),
    tm.LowerBound(tile=(2, 2), **TINY),
]
every_method = pytest.mark.parametrize(
    "config", METHODS, ids=[f"{type(config).__name__}-{number}" for number, config in enumerate(METHODS)]
)
BROKEN = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf}


def call(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs, return_dict=False)[0]
    return output


def planned(config: tm.MergeConfig, tokens: Tensor, grid: tuple[int, int]) -> Any:
    """The operator for keys, which every method has."""
    operators = config.plan(tokens, config.layout(grid), BlockContext("block", 1, 2), None)
    return operators.keys


# -- operators -----------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_token_stays_with_its_sample(config: tm.MergeConfig, broken: float) -> None:
    tokens = torch.randn(2, 64, 8)
    alone = planned(config, tokens[1:], (8, 8)).merge(tokens[1:])
    tokens[0, 9] = broken
    operator = planned(config, tokens, (8, 8))
    if operator.mass is not None:
        assert operator.mass.isfinite().all()
    merged = operator.merge(tokens)
    torch.testing.assert_close(merged[1:], alone)
    back = operator.unmerge(merged)
    assert back[1].isfinite().all()


@every_method
def test_broken_tokens_are_never_hidden(config: tm.MergeConfig) -> None:
    tokens = torch.full((1, 64, 8), math.nan)
    operator = planned(config, tokens, (8, 8))
    assert operator.unmerge(operator.merge(tokens)).isnan().all()


@every_method
def test_zero_tokens_are_merged_as_equals(config: tm.MergeConfig) -> None:
    tokens = torch.zeros(1, 64, 8)
    operator = planned(config, tokens, (8, 8))
    merged = operator.merge(tokens)
    assert 0 < merged.shape[1] < 64
    assert torch.equal(operator.unmerge(merged), tokens)


@pytest.mark.parametrize("grid", [(0, 8), (8, 0), (2, 0, 8), ()])
def test_an_empty_grid_is_an_error(grid: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="holds no tokens"):
        regions_of(grid, (2,) * len(grid))


def test_one_token_is_a_region_of_its_own() -> None:
    regions = regions_of((1, 1), (4, 4))
    assert (regions.count, regions.size, regions.kept(0.5)) == (1, 1, 1)


@pytest.mark.parametrize("selector", SELECTORS.values(), ids=list(SELECTORS))
def test_selecting_from_one_token_and_for_no_samples(selector: Any) -> None:
    assert selector(torch.ones(2, 3, 1, 1), 1, torch.ones(3, 1, dtype=torch.bool)).flatten().tolist() == [0] * 6
    assert selector(torch.ones(0, 3, 4, 4), 2, torch.ones(3, 4, dtype=torch.bool)).shape == (0, 3, 2)


def test_broken_similarities_still_give_different_places() -> None:
    similarity = torch.full((1, 1, 6, 6), math.nan)
    selected = select_facility_location(similarity, 3, torch.ones(1, 6, dtype=torch.bool))
    assert ((selected >= 0) & (selected < 6)).all()


# -- models --------------------------------------------------------------------------------------------------------


@in_turn("tiny, scope", ["site", "stack"], suits=has_scope)
def test_a_broken_sample_leaves_the_others_alone(tiny: TinyModel, scope: Any) -> None:
    model, grid = made(tiny.build), tiny.grid(8, 8)
    first = next(name for name in ("sample", "hidden_states", "x") if name in tiny.inputs([1], grid))
    with tm.merged(model, dataclasses.replace(tm.ToMA(ratio=0.75, tile=(2, 2), selector="grid", **TINY), scope=scope)):
        whole = tiny.run(model, tiny.inputs([1, 2], grid))
        inputs = tiny.inputs([1, 2], grid)
        inputs[first][0] = inputs[first][0] * math.nan
        broken = tiny.run(model, inputs)
    image = slice(tiny.text if tiny.returns_text else 0, None)
    assert broken[0][image].isnan().all()
    torch.testing.assert_close(broken[1], whole[1], rtol=1e-5, atol=1e-5)


# Two frames are two tokens, and some models themselves refuse sides that are odd.
@in_turn("tiny, config", METHODS, [tiny for tiny in TINY_MODELS if not tiny.video and not tiny.even])
def test_one_token_is_an_error(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    with pytest.raises(TokenMergeError), tm.merged(model, config):
        tiny.call(model, [1], (1, 1))


@pytest.mark.parametrize("tiny", TINY_MODELS, ids=str)
def test_a_call_without_samples_is_an_error(tiny: TinyModel) -> None:
    model, grid = made(tiny.build), tiny.grid(8, 8)
    inputs = {
        name: value[:0] if isinstance(value, list) or (isinstance(value, Tensor) and value.dim()) else value
        for name, value in tiny.inputs([1], grid).items()
    }
    config = tm.ToMA(ratio=0.75, tile=(2, 2), **TINY)
    with tm.merged(model, config), pytest.raises(MergeRuntimeError, match="which is empty"):
        call(model, inputs)
