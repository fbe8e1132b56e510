"""A selector of one's own, and what it is called with."""

import dataclasses

import pytest
import torch

from tokenmerge import SampledKeys, TileMean, ToMA, ToMeSD
from tokenmerge.config.interfaces import BlockContext
from tokenmerge.errors import ConfigError


@pytest.mark.parametrize("one_for_batch", [False, True])
def test_a_selector_gets_the_documented_shapes_and_is_obeyed(one_for_batch):
    calls = []

    def last_tokens(similarity, count, available):
        calls.append((similarity, count, available))
        size = similarity.shape[2]
        return torch.arange(size - count, size).expand(*similarity.shape[:2], count)

    grid, tokens = (8, 12), torch.randn(2, 96, 5)
    config = ToMA(selector=last_tokens, ratio=0.75)
    operators = config.plan(tokens, config.layout(grid), BlockContext("block", 0, 1, one_for_batch=one_for_batch), None)
    [(similarity, count, available)] = calls
    assert similarity.shape == ((1, 6, 16, 32) if one_for_batch else (2, 6, 16, 16))
    assert similarity.dtype == torch.float32
    assert count == 4
    assert available.shape == (6, 16)
    assert available.dtype == torch.bool
    assert available.all()
    last_row_of_first_tile = [36, 37, 38, 39]
    assert operators.queries.destinations[:, :4].tolist() == [last_row_of_first_tile] * 2


def test_a_selector_is_given_the_padding():
    seen = []

    def first_tokens(similarity, count, available):
        seen.append((similarity, available))
        return torch.arange(count).expand(*similarity.shape[:2], count)

    grid, tokens = (7, 9), torch.randn(1, 63, 5)
    config = ToMA(selector=first_tokens)
    config.plan(tokens, config.layout(grid), BlockContext("block", 0, 1), None)
    [(similarity, available)] = seen
    assert int(available.sum()) == 63
    assert (similarity.transpose(-1, -2)[:, ~available] == 0).all()  # padding need not be represented


def test_a_selector_that_gives_something_else_is_an_error():
    config = ToMA(ratio=0.5, selector=lambda similarity, count, available: torch.arange(count))
    with pytest.raises(ConfigError, match=r"selector returned indices of shape \(8,\).*here \(2, 4, 8\)"):
        config.plan(torch.randn(2, 64, 5), config.layout((8, 8)), BlockContext("block", 0, 1), None)


@pytest.mark.parametrize("grid", [(8, 12), (9, 13)])
def test_sampled_keys_are_one_of_each_tile_and_others_at_each_step(grid):
    config, tokens = SampledKeys(), torch.randn(2, grid[0] * grid[1], 5)
    layout = config.layout(grid)
    regions = layout.regions
    seen = []
    for step in range(4):
        context = BlockContext("block", 0, 1, seed=torch.tensor(step))
        operators = config.plan(tokens, layout, context, None)
        keys = operators.keys
        assert operators.queries is None
        assert torch.equal(keys.merge(tokens)[1], tokens[1, keys.destinations[1]])
        home = regions.inverse[keys.destinations[0]] // regions.size
        assert home.tolist() == list(range(regions.count))
        assert keys.mass.sum(dim=1).tolist() == [tokens.shape[1]] * 2
        seen.append(keys.destinations[0].tolist())
    assert len({tuple(each) for each in seen}) == 4


def test_new_weights_keep_the_destinations():
    grid, config, context = (8, 8), ToMA(ratio=0.75), BlockContext("block", 0, 1)
    layout = config.layout(grid)
    first = config.plan(torch.randn(2, 64, 5), layout, context, None)
    second = config.plan(torch.randn(2, 64, 5), layout, context, first)
    assert torch.equal(first.queries.destinations, second.queries.destinations)
    assert not torch.equal(first.queries.mass, second.queries.mass)


@pytest.mark.parametrize(
    ("selected", "said"),
    [
        (None, r"selector returned NoneType: it must return .* shape \(samples, regions, 8\)"),
        (torch.zeros(2, 4, 8), "indices of type torch.float32: they must be torch.long"),
        (torch.full((2, 4, 8), 16), "indices from 16 to 16: a region has 16 candidates"),
        (torch.full((2, 4, 8), -1), "indices from -1 to -1"),
    ],
)
def test_a_selector_that_returns_no_choice_is_refused(selected, said):
    config = ToMA(ratio=0.5, selector=lambda *_: selected, min_tokens=0)
    with pytest.raises(ConfigError, match=said):
        config.plan(torch.randn(2, 64, 8), config.layout((8, 8)), BlockContext("block", 0, 1), None)


@pytest.mark.parametrize("config", [ToMA(ratio=0.75), TileMean(tile=2), ToMeSD(ratio=0.75)], ids=repr)
def test_keys_are_merged_or_sampled_or_all(config):
    grid, context, tokens = (8, 8), BlockContext("block", 0, 1), torch.randn(2, 64, 8)
    layouts, operators = {}, {}
    for keys in ("merged", "sampled", "all"):
        chosen = dataclasses.replace(config, keys=keys)
        layouts[keys] = chosen.layout(grid)
        operators[keys] = chosen.plan(tokens, layouts[keys], context, None)
    assert {keys: layout.kept_keys for keys, layout in layouts.items()} == {"merged": 16, "sampled": 16, "all": 64}
    assert operators["merged"].keys is operators["merged"].queries
    assert operators["all"].keys is None
    keys = operators["sampled"].keys
    read = torch.stack([sample[places] for sample, places in zip(tokens, keys.destinations, strict=True)])
    assert torch.equal(keys.merge(tokens), read)
    assert keys.mass.sum(dim=1).tolist() == pytest.approx([64.0, 64.0])
    assert torch.equal(operators["merged"].queries.merge(tokens), operators["sampled"].queries.merge(tokens))
    assert not torch.equal(operators["merged"].keys.merge(tokens), read)
