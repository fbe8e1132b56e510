"""Greedy facility location against a brute-force greedy and against the best possible choice."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmerge.ops.selection import SELECTORS, select_facility_location, select_grid, select_random

quick = settings(deadline=None, max_examples=60, derandomize=True, database=None)


def reached(similarity, chosen):
    """The objective: how well each token is represented by its best destination."""
    return similarity[list(chosen)].max(axis=0).sum()


def brute_force_greedy(similarity, count, available):
    """One candidate after the other, by trying out the objective with each of them; ties to the lowest index."""
    chosen = []
    for _ in range(count):
        candidates = [i for i in range(len(similarity)) if available[i] and i not in chosen]
        chosen.append(max(candidates, key=lambda i: (reached(similarity, [*chosen, i]), -i)))
    return chosen


def select(similarity, count, available=None, selector=select_facility_location):
    matrix = torch.from_numpy(np.asarray(similarity))[None, None]
    if available is None:
        available = np.ones(len(similarity), dtype=bool)
    selected = selector(matrix, count, torch.from_numpy(np.asarray(available))[None])
    assert selected.dtype == torch.long
    assert selected.shape == (1, 1, count)
    return selected[0, 0].tolist()


@st.composite
def exact_problems(draw, lowest=-8):
    """Similarities in eighths, of which every sum is exact, so that ties are ties in any order of summation."""
    n = draw(st.integers(1, 8))
    m = draw(st.integers(1, 8))
    cells = draw(st.lists(st.integers(lowest, 8), min_size=n * m, max_size=n * m))
    available = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any))
    count = draw(st.integers(1, sum(available)))
    return np.array(cells, dtype=np.float64).reshape(n, m) / 8, count, available


@quick
@given(exact_problems())
def test_equals_brute_force_with_ties_and_negative_similarities(problem):
    similarity, count, available = problem
    assert select(similarity, count, available) == brute_force_greedy(similarity, count, available)


@pytest.mark.parametrize("seed", range(10))
def test_equals_brute_force_on_tokens(seed):
    tokens = np.random.default_rng(seed).normal(size=(16, 5))
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    # Two tokens that are each other's nearest gain exactly the same, so sums have to be exact for ties to be ties.
    similarity = np.round(unit @ unit.T * 2**20) / 2**20
    assert select(similarity, 9) == brute_force_greedy(similarity, 9, [True] * 16)


ADVERSARIAL = {
    "one token": np.ones((1, 1)),
    "all equal": np.ones((6, 6)),
    "all zero": np.zeros((6, 6)),
    "all negative": -np.eye(6) - 1,
    "pairs of duplicates": np.kron(np.eye(3), np.ones((2, 2))),
    "opposites": np.array([[1.0, -1.0], [-1.0, 1.0]]),
    "one token like all others": np.eye(5) + np.eye(1, 5).T @ np.ones((1, 5)),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_equals_brute_force_on_adversarial_inputs(name):
    similarity = ADVERSARIAL[name]
    for count in range(1, len(similarity) + 1):
        assert select(similarity, count) == brute_force_greedy(similarity, count, [True] * len(similarity))


@quick
@given(exact_problems(lowest=0))
def test_reaches_its_share_of_the_optimum(problem):
    similarity, count, available = problem
    candidates = [i for i, free in enumerate(available) if free]
    optimum = max(reached(similarity, chosen) for chosen in itertools.combinations(candidates, count))
    assert reached(similarity, select(similarity, count, available)) >= (1 - 1 / math.e) * optimum - 1e-9


def test_each_region_of_each_sample_is_its_own_problem():
    similarity = torch.rand(3, 4, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    available = torch.ones(4, 7, dtype=torch.bool)
    together = select_facility_location(similarity, 4, available)
    for sample, region in itertools.product(range(3), range(4)):
        assert together[sample, region].tolist() == select(similarity[sample, region].numpy(), 4)


def test_first_picks_are_what_fewer_would_have_been():
    similarity = np.random.default_rng(1).random((12, 12))
    longest = select(similarity, 12)
    for count in range(1, 12):
        assert select(similarity, count) == longest[:count]


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("count", [1, 3, 5])
def test_every_selector_is_repeatable_distinct_and_keeps_clear_of_padding(name, count):
    similarity = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    available = torch.arange(8) < torch.tensor([[8], [5], [6]])  # padding comes last in a region
    selected = SELECTORS[name](similarity, count, available)
    assert torch.equal(selected, SELECTORS[name](similarity, count, available))
    assert selected.shape == (2, 3, count)
    for sample in selected.tolist():
        for region, chosen in enumerate(sample):
            assert len(set(chosen)) == count
            assert all(available[region, token] for token in chosen)


@pytest.mark.parametrize("selector", [select_random, select_grid])
def test_baselines_ignore_what_tokens_hold(selector):
    available = torch.ones(2, 9, dtype=torch.bool)
    one = selector(torch.zeros(1, 2, 9, 9), 4, available)
    other = selector(torch.rand(3, 2, 9, 9), 4, available)
    assert torch.equal(one.expand(3, -1, -1), other)


def test_grid_takes_even_distances():
    assert select(np.zeros((8, 8)), 4, selector=select_grid) == [1, 3, 5, 7]


def test_random_differs_between_regions():
    selected = select_random(torch.zeros(1, 6, 32, 32), 8, torch.ones(6, 32, dtype=torch.bool))
    assert len({tuple(region) for region in selected[0].tolist()}) == 6


def test_random_differs_between_draws_and_is_the_same_for_one():
    available = torch.ones(64, 4, dtype=torch.bool)
    draws = [select_random(torch.zeros(1, 64, 4, 4), 1, available, draw).flatten() for draw in range(50)]
    assert torch.equal(draws[3], select_random(torch.zeros(1, 64, 4, 4), 1, available, torch.tensor(3)).flatten())
    assert len({tuple(draw.tolist()) for draw in draws}) == 50
    # Every place of every region has its turn, none much more often than another.
    counts = torch.nn.functional.one_hot(torch.stack(draws), 4).sum(dim=0)
    assert counts.min() >= 1
    assert counts.sum(dim=0).float().div(64 * 50).sub(0.25).abs().max() < 0.03
