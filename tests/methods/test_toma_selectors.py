"""A selector of one's own, and what it is called with."""

import dataclasses

import pytest
import torch

from tokenmerge import ToMA
from tokenmerge.errors import ConfigError
from tokenmerge.methods.interfaces import BlockContext
from tokenmerge.ops.selection import SELECTORS


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


def test_a_selector_is_told_of_padding():
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
    with pytest.raises(ConfigError, match=r"selector gave indices of shape \(8,\).*here \(2, 4, 8\)"):
        config.plan(torch.randn(2, 64, 5), config.layout((8, 8)), BlockContext("block", 0, 1), None)


@pytest.mark.parametrize("in_region_order", [False, True])
@pytest.mark.parametrize("name", ["random", "grid"])
def test_keys_chosen_without_a_look_are_those_of_a_look(name, in_region_order):
    """A function is given similarities, one of ours that needs none is not: both give the same operator."""

    def looked(similarity, count, available):
        return SELECTORS[name](similarity, count, available)

    tokens, place = torch.randn(2, 96, 5), BlockContext("block", 0, 1, in_region_order=in_region_order)
    operators = []
    for selector in (name, looked):
        config = dataclasses.replace(ToMA.keys(), selector=selector)
        operators.append(config.plan(tokens, config.layout((8, 12)), place, None).keys)
    blind, general = operators
    assert torch.equal(blind.destinations, general.destinations)
    assert torch.equal(blind.mass, general.mass)
    merged = blind.merge(tokens)
    assert torch.equal(merged, general.merge(tokens))
    assert torch.equal(blind.unmerge(merged), general.unmerge(merged))


def test_new_weights_keep_the_destinations():
    grid, config, place = (8, 8), ToMA(ratio=0.75), BlockContext("block", 0, 1)
    layout = config.layout(grid)
    first = config.plan(torch.randn(2, 64, 5), layout, place, None)
    second = config.plan(torch.randn(2, 64, 5), layout, place, first)
    assert torch.equal(first.queries.destinations, second.queries.destinations)
    assert not torch.equal(first.queries.mass, second.queries.mass)


def test_keys_are_a_beginning_of_the_queries_choice():
    grid, config = (8, 8), ToMA(ratio=0.25, kv_ratio=0.75, scope="site")
    operators = config.plan(
        torch.randn(1, 64, 5), config.layout(grid), BlockContext("block", 0, 1, keys_of_all=True), None
    )
    queries = set(operators.queries.destinations[0].tolist())
    keys = set(operators.keys.destinations[0].tolist())
    assert len(queries) == 48
    assert len(keys) == 16
    assert keys < queries


@pytest.mark.parametrize(
    ("picks", "said"),
    [
        (torch.zeros(2, 4, 8), "indices of type torch.float32: they must be torch.long"),
        (torch.full((2, 4, 8), 16), "indices from 16 to 16: a region has 16 candidates"),
        (torch.full((2, 4, 8), -1), "indices from -1 to -1"),
    ],
)
def test_a_selector_that_gives_no_choice_is_told_so(picks, said):
    config = ToMA(ratio=0.5, selector=lambda *_: picks, min_tokens=0)
    with pytest.raises(ConfigError, match=said):
        config.plan(torch.randn(2, 64, 8), config.layout((8, 8)), BlockContext("block", 0, 1), None)


def test_keys_apart_are_picked_and_weighed_not_averaged():
    grid, config = (8, 8), ToMA(ratio=0, kv_ratio=0.75)
    tokens = torch.randn(2, 64, 8)
    operators = config.plan(tokens, config.layout(grid), BlockContext("block", 0, 1), None)
    keys = operators.keys
    picked = torch.stack([sample[places] for sample, places in zip(tokens, keys.destinations, strict=True)])
    assert torch.equal(keys.merge(tokens), picked)
    assert keys.mass.sum(dim=1).tolist() == pytest.approx([64.0, 64.0])
    alike = ToMA(ratio=0.75)
    both = alike.plan(tokens, alike.layout(grid), BlockContext("block", 0, 1), None).keys
    assert torch.equal(both.destinations, keys.destinations)
    assert not torch.equal(both.merge(tokens), picked)
