"""Regions hold every token once, whatever the grid."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmerge.ops.regions import regions_of, stripe_tile

quick = settings(deadline=None, max_examples=60, derandomize=True, database=None)
grids = st.lists(st.integers(1, 9), min_size=2, max_size=3).map(tuple)


@st.composite
def grids_and_tiles(draw):
    grid = draw(grids)
    return grid, tuple(draw(st.integers(1, length)) for length in grid)


@quick
@given(grids_and_tiles())
def test_scatter_undoes_gather(case):
    grid, tile = case
    regions = regions_of(grid, tile)
    tokens = torch.arange(math.prod(grid), dtype=torch.float32).view(1, -1, 1).expand(2, -1, 3)
    in_regions = regions.gather(tokens)
    assert in_regions.shape == (2, regions.count * regions.size, 3)
    assert torch.equal(regions.scatter(in_regions), tokens)


@quick
@given(grids_and_tiles())
def test_every_token_is_in_one_region_of_neighbours(case):
    grid, tile = case
    regions = regions_of(grid, tile)
    assert regions.count == math.prod(math.ceil(length / side) for length, side in zip(grid, tile, strict=True))
    assert regions.tokens == math.prod(grid)
    valid = torch.ones(regions.count, regions.size, dtype=torch.bool) if regions.valid is None else regions.valid
    order = regions.order.view(regions.count, regions.size)
    assert sorted(order[valid].tolist()) == list(range(regions.tokens))
    assert int(valid.sum(dim=1).min()) == regions.smallest
    assert int(valid.sum(dim=1).max()) == regions.size
    for tokens in order:  # padding included: it repeats a token of the same region
        coordinates = torch.stack(torch.unravel_index(tokens, grid))
        extent = coordinates.amax(dim=1) - coordinates.amin(dim=1) + 1
        assert all(int(length) <= side for length, side in zip(extent, tile, strict=True))


@quick
@given(grids_and_tiles())
def test_real_places_come_before_padding(case):
    regions = regions_of(*case)
    if regions.valid is not None:
        assert torch.equal(regions.valid, regions.valid.sort(dim=1, descending=True).values)


@quick
@given(grids_and_tiles(), st.floats(0.01, 0.99))
def test_kept_is_possible_in_every_region(case, ratio):
    regions = regions_of(*case)
    assert 1 <= regions.kept(ratio) <= regions.smallest


@pytest.mark.parametrize(("ratio", "kept"), [(0.25, 12), (0.5, 8), (0.75, 4), (0.9, 2)])
def test_kept_of_a_whole_tile(ratio, kept):
    assert regions_of((8, 12), (4, 4)).kept(ratio) == kept


def test_dividing_tiles_need_no_padding():
    regions = regions_of((8, 12), (4, 4))
    assert (regions.count, regions.size, regions.padded, regions.is_identity) == (6, 16, False, False)


@pytest.mark.parametrize("tile", [(2, 6), (1, 6), (4, 6)])
def test_stripes_need_not_move(tile):
    regions = regions_of((4, 6), tile)
    tokens = torch.rand(1, 24, 2)
    assert regions.is_identity
    assert regions.gather(tokens) is tokens


@quick
@given(grids, st.integers(1, 100))
def test_a_stripe_is_whole_rows_of_one_frame(grid, area):
    tile = stripe_tile(grid, area)
    assert tile[-1] == grid[-1]
    assert 1 <= tile[-2] <= grid[-2]
    assert all(side == 1 for side in tile[:-2])
