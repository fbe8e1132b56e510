"""Means of tiles, and the way back from them, against regions and against straight lines."""

from __future__ import annotations

import pytest
import torch

from tokenmerge.ops.regions import regions_of
from tokenmerge.ops.tiles import mean_of_tiles, middles_of_tiles, spread_between_tiles

CASES = [((8, 12), (4, 4)), ((6, 6), (4, 4)), ((4, 8), (1, 8)), ((2, 8, 8), (1, 4, 4)), ((4, 8, 8), (2, 4, 2))]


def tiles_along(grid: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-length // side) for length, side in zip(grid, tile, strict=True))


@pytest.mark.parametrize(("grid", "tile"), CASES)
def test_means_are_those_of_regions(grid: tuple[int, ...], tile: tuple[int, ...]) -> None:
    regions = regions_of(grid, tile)
    tokens = torch.randn(2, regions.tokens, 5, generator=torch.Generator().manual_seed(0))
    in_regions = regions.gather(tokens).view(2, regions.count, regions.size, 5)
    means = mean_of_tiles(tokens, grid, tiles_along(grid, tile))
    torch.testing.assert_close(means, in_regions.mean(dim=2))


@pytest.mark.parametrize(("grid", "tile"), CASES)
def test_a_middle_lies_in_its_tile_and_in_its_middle(grid: tuple[int, ...], tile: tuple[int, ...]) -> None:
    regions = regions_of(grid, tile)
    middles = middles_of_tiles(grid, tiles_along(grid, tile), torch.device("cpu"))
    assert (regions.inverse[middles] // regions.size).tolist() == list(range(regions.count))
    places = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij"), dim=-1).flatten(0, -2).float()
    means = mean_of_tiles(places[None], grid, tiles_along(grid, tile))[0]
    assert (places[middles] - means).abs().max() <= 0.5


def test_what_is_spread_runs_in_straight_lines_from_middle_to_middle() -> None:
    grid, tiles = (12, 8), (3, 2)
    rows = torch.arange(12.0).view(12, 1).expand(grid)
    columns = torch.arange(8.0).expand(grid)
    plane = (2 * rows - 3 * columns + 1).reshape(1, 96, 1)
    spread = spread_between_tiles(mean_of_tiles(plane, grid, tiles), grid, tiles)
    # The middles of the outermost tiles are one and a half tokens from the edge: beyond them nothing is known.
    inside = spread.view(grid)[2:10, 2:6]
    torch.testing.assert_close(inside, plane.view(grid)[2:10, 2:6])
    assert torch.equal(spread.view(grid)[0], spread.view(grid)[1])


@pytest.mark.parametrize("grid", [(8, 8), (2, 8, 8)])
def test_nothing_reaches_into_another_frame_or_sample(grid: tuple[int, ...]) -> None:
    tiles = (*grid[:-2], 2, 2)
    tokens = torch.zeros(2, torch.Size(tiles).numel(), 1)
    tokens[0, :4] = 1.0  # the first frame of the first sample
    spread = spread_between_tiles(tokens, grid, tiles)
    assert torch.equal(spread[0, :64], torch.ones(64, 1))
    assert not spread[0, 64:].any()
    assert not spread[1].any()


@pytest.mark.parametrize(("grid", "tiles"), [((8, 8), (2, 2)), ((2, 8, 4), (2, 2, 1)), ((2, 8, 4), (1, 2, 1))])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_type_is_kept(dtype: torch.dtype, grid: tuple[int, ...], tiles: tuple[int, ...]) -> None:
    tokens = torch.randn(1, 64, 3, generator=torch.Generator().manual_seed(0))
    for autocast in (False, True):
        with torch.autocast("cpu", enabled=autocast):
            means = mean_of_tiles(tokens.to(dtype), grid, tiles)
            assert means.dtype == dtype
            assert spread_between_tiles(means, grid, tiles).dtype == dtype
    torch.testing.assert_close(means.float(), mean_of_tiles(tokens, grid, tiles), atol=1e-2, rtol=1e-2)


def test_memory_in_which_an_image_comes_makes_no_difference() -> None:
    image = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    tokens = image.flatten(2).transpose(1, 2)
    assert not tokens.is_contiguous()
    torch.testing.assert_close(
        mean_of_tiles(tokens, (8, 8), (2, 2)), mean_of_tiles(tokens.contiguous(), (8, 8), (2, 2))
    )
