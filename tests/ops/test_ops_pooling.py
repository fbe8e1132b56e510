"""Pooling reads what nearest interpolation reads."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmerge.ops.pooling import nearest_pooling, pooled_grid

quick = settings(deadline=None, max_examples=60, derandomize=True, database=None)
CPU = torch.device("cpu")


@st.composite
def coarsenings(draw):
    grid = tuple(draw(st.integers(1, 12)) for _ in range(draw(st.integers(2, 3))))
    return grid, tuple(draw(st.integers(1, length)) for length in grid)


@quick
@given(coarsenings())
def test_keeps_what_nearest_interpolation_reads(case):
    grid, coarse = case
    tokens = torch.arange(math.prod(grid), dtype=torch.float32)
    expected = torch.nn.functional.interpolate(tokens.view(1, 1, *grid), size=coarse, mode="nearest")
    assert tokens[nearest_pooling(grid, coarse, CPU).kept].tolist() == expected.flatten().tolist()


@quick
@given(coarsenings())
def test_every_token_has_one_that_stands_for_it(case):
    grid, coarse = case
    pooling = nearest_pooling(grid, coarse, CPU)
    assert torch.equal(pooling.place[pooling.kept], torch.arange(math.prod(coarse)))
    assert torch.equal(pooling.mass, pooling.place.bincount(minlength=math.prod(coarse)).float())


@pytest.mark.parametrize(
    ("factor", "grid"), [(2, (12, 24)), (2, (7, 9)), (2, (2, 12, 5)), (3, (12, 24)), (4, (12, 24))]
)
def test_a_whole_factor_divides_rows_and_columns(grid, factor):
    keep = math.sqrt(1 - (1 - 1 / factor**2))
    assert pooled_grid(grid, keep) == (*grid[:-2], grid[-2] // factor, grid[-1] // factor)


def test_other_fractions_go_to_the_nearest_number_of_rows():
    assert pooled_grid((8, 8), 0.99) == (8, 8)
    assert pooled_grid((8, 10), 0.7) == (6, 7)


def test_something_is_always_kept():
    assert pooled_grid((3, 2), 0.25) == (1, 1)
