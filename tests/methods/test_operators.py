"""What every method's operators keep to, on every kind of grid."""

import dataclasses
import math

import pytest
import torch

from tokenmerge import LowerBound, SampledKeys, TileMean, ToDo, ToFu, ToMA, ToMeSD
from tokenmerge.config.interfaces import BlockContext, CannotMerge

EVERYWHERE = BlockContext("block", index=0, count=2)
LATER = BlockContext("block", index=1, count=2)

METHODS = {
    "toma": (ToMA(ratio=0.75), EVERYWHERE),
    "tile mean": (TileMean(tile=2), EVERYWHERE),
    "tile mean of frames": (TileMean(tile=(2, 2, 2)), EVERYWHERE),
    "sampled keys": (SampledKeys(), EVERYWHERE),
    "toma, stripes": (ToMA(ratio=0.75, region="stripe"), EVERYWHERE),
    "toma, paper": (ToMA(ratio=0.75, region="stripe+global"), EVERYWHERE),
    "toma, random": (ToMA(ratio=0.75, selector="random"), EVERYWHERE),
    "toma, grid": (ToMA(ratio=0.75, selector="grid"), EVERYWHERE),
    "toma, pinv": (dataclasses.replace(ToMA.paper_pinv(0.75), tile=4), EVERYWHERE),
    "tomesd": (ToMeSD(), EVERYWHERE),
    "tomesd, fixed": (ToMeSD(use_rand=False, ratio=0.75), EVERYWHERE),
    "tomesd, 3 x 2 cells": (ToMeSD(sx=3, sy=2, per_cell=2), EVERYWHERE),
    "tofu, pruning": (ToFu(), EVERYWHERE),
    "tofu, merging": (ToFu(), LATER),
    "todo": (ToDo(), EVERYWHERE),
    "todo, any ratio": (ToDo(ratio=0.4), EVERYWHERE),
}
GRIDS = [(8, 8), (8, 12), (7, 9), (5, 6), (3, 6, 5)]

each_method = pytest.mark.parametrize(("config", "context"), METHODS.values(), ids=METHODS)
each_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)


def tokens_on(grid, batch=3, channels=6, seed=0):
    return torch.randn(batch, math.prod(grid), channels, generator=torch.Generator().manual_seed(seed))


def operator_for(config, context, tokens, grid):
    layout = config.layout(grid).to(tokens.device)
    operators = config.plan(tokens, layout, context, None)
    if isinstance(config, ToDo | SampledKeys):
        assert operators.queries is None
        assert layout.kept == layout.tokens
    else:
        assert operators.queries is operators.keys
        assert layout.kept == layout.kept_keys
    return layout, operators.keys


@each_method
@each_grid
def test_as_many_tokens_as_the_layout_says(config, context, grid):
    tokens = tokens_on(grid)
    layout, operator = operator_for(config, context, tokens, grid)
    assert layout.tokens == tokens.shape[1]
    assert layout.kept_keys < layout.tokens
    merged = operator.merge(tokens)
    assert merged.shape == (3, layout.kept_keys, 6)
    assert operator.unmerge(merged).shape == tokens.shape


@each_method
@each_grid
def test_kept_tokens_stand_for_all_and_sit_at_different_places(config, context, grid):
    tokens = tokens_on(grid)
    layout, operator = operator_for(config, context, tokens, grid)
    assert operator.mass.shape == operator.destinations.shape == (3, layout.kept_keys)
    torch.testing.assert_close(operator.mass.sum(dim=1), torch.full((3,), float(layout.tokens)))
    for destinations in operator.destinations.tolist():
        assert len(set(destinations)) == layout.kept_keys
        assert set(destinations) <= set(range(layout.tokens))


@each_method
@each_grid
def test_destinations_are_in_the_order_of_merged_tokens(config, context, grid):
    # Each token has its own channel, so a merged one shows which tokens went into it: none more than its own.
    count = math.prod(grid)
    tokens = torch.eye(count).unsqueeze(0)
    _, operator = operator_for(config, context, tokens, grid)
    merged = operator.merge(tokens)[0]
    own = merged.gather(1, operator.destinations[0].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(own, merged.amax(dim=1))
    assert (own > 0).all()


@each_method
@each_grid
def test_a_sample_in_a_batch_is_what_it_is_alone(config, context, grid):
    tokens = tokens_on(grid)
    _, together = operator_for(config, context, tokens, grid)
    merged = together.merge(tokens)
    full = together.unmerge(merged)
    for sample in range(3):
        single = tokens[sample : sample + 1]
        _, alone = operator_for(config, context, single, grid)
        assert torch.equal(alone.destinations[0], together.destinations[sample])
        torch.testing.assert_close(alone.merge(single)[0], merged[sample], atol=1e-5, rtol=0)
        torch.testing.assert_close(alone.unmerge(alone.merge(single))[0], full[sample], atol=1e-5, rtol=0)


@each_method
@each_grid
def test_equal_tokens_come_back_as_they_were(config, context, grid):
    tokens = torch.tensor([1.0, -2.0, 0.5]).expand(2, math.prod(grid), 3)
    _, operator = operator_for(config, context, tokens, grid)
    torch.testing.assert_close(operator.unmerge(operator.merge(tokens)), tokens, atol=1e-4, rtol=1e-4)


@each_method
@each_grid
def test_one_plan_for_a_batch_keeps_the_same_tokens(config, context, grid):
    tokens = tokens_on(grid)
    shared = BlockContext(context.name, context.index, context.count, one_for_batch=True)
    _, operator = operator_for(config, shared, tokens, grid)
    assert operator.destinations.shape[0] == operator.mass.shape[0] == 3
    assert (operator.destinations == operator.destinations[0]).all()
    _, alone = operator_for(config, context, tokens[:1], grid)
    _, alone_shared = operator_for(config, shared, tokens[:1], grid)
    assert torch.equal(alone.destinations, alone_shared.destinations)


def test_one_plan_for_a_batch_listens_to_every_sample():
    tokens = tokens_on((8, 8))
    shared = BlockContext("block", 0, 2, one_for_batch=True)
    for config in (ToMA(ratio=0.9375), ToMeSD()):
        _, of_all = operator_for(config, shared, tokens, (8, 8))
        _, of_first = operator_for(config, EVERYWHERE, tokens[:1], (8, 8))
        assert set(of_all.destinations[0].tolist()) != set(of_first.destinations[0].tolist())


@each_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 2e4])
def test_half_precision_keeps_its_type_and_stays_finite(config, context, dtype, scale):
    grid = (6, 8)
    tokens = (tokens_on(grid) * scale).clamp(-6e4, 6e4).to(dtype)
    _, operator = operator_for(config, context, tokens, grid)
    _, wide = operator_for(config, context, tokens.float(), grid)
    assert torch.equal(operator.destinations, wide.destinations)
    assert operator.mass.dtype == torch.float32
    merged = operator.merge(tokens)
    assert merged.dtype == dtype
    assert merged.isfinite().all()


@each_method
def test_planning_is_repeatable_and_leaves_randomness_alone(config, context):
    tokens = tokens_on((8, 8))
    before = torch.get_rng_state()
    _, first = operator_for(config, context, tokens, (8, 8))
    _, second = operator_for(config, context, tokens, (8, 8))
    assert torch.equal(first.destinations, second.destinations)
    assert torch.equal(first.merge(tokens), second.merge(tokens))
    assert torch.equal(before, torch.get_rng_state())


@each_method
def test_planning_needs_no_gradients(config, context):
    tokens = tokens_on((8, 8)).requires_grad_()
    _, operator = operator_for(config, context, tokens, (8, 8))
    assert not operator.mass.requires_grad
    assert operator.merge(tokens).requires_grad


@each_method
def test_nothing_waits_for_the_device(config, context):
    # Meta tensors have no values: asking for one raises.
    tokens = torch.empty(2, 63, 6, device="meta")
    layout, operator = operator_for(config, context, tokens, (7, 9))
    assert operator.unmerge(operator.merge(tokens)).shape == tokens.shape
    assert operator.mass.shape == (2, layout.kept_keys)


@pytest.mark.parametrize(
    "name", ["toma", "tile mean", "sampled keys", "tomesd", "tomesd, fixed", "tofu, pruning", "tofu, merging", "todo"]
)
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_planning_and_merging_trace_into_one_graph(name):
    config, context = METHODS[name]
    layout, tokens = config.layout((6, 6)), tokens_on((6, 6))

    def there_and_back(tokens):
        operator = config.plan(tokens, layout, context, None).keys
        return operator.unmerge(operator.merge(tokens))

    traced = torch.compile(there_and_back, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(tokens), there_and_back(tokens))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_lower_bound_has_the_shapes_of_toma(grid):
    tokens = tokens_on(grid)
    layout, operator = operator_for(LowerBound(), EVERYWHERE, tokens, grid)
    merged = operator.merge(tokens)
    assert layout.kept == ToMA().layout(grid).kept
    assert merged.shape == (3, layout.kept, 6)
    assert operator.unmerge(merged).shape == tokens.shape


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ToMA(ratio=0.001), "ratio 0.001"),
        (ToMeSD(ratio=0.001), "ratio 0.001"),
        (ToFu(ratio=0.001), "ratio 0.001"),
        (ToDo(ratio=0.001), "ratio 0.001"),
    ],
)
def test_a_ratio_that_merges_nothing_says_so(config, reason):
    with pytest.raises(CannotMerge, match=reason):
        config.layout((8, 8))
