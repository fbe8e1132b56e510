"""ToMeSD's own options: cells, seeds, levels."""

import pytest
import torch

import tokenmerge as tm
from tokenmerge.config.interfaces import BlockContext, CannotMerge
from tokenmerge.errors import ConfigError


def kept(config, index=0, batch=1, grid=(16, 16)):
    tokens = torch.randn(batch, 256, 4, generator=torch.Generator().manual_seed(0))
    return config.plan(tokens, config.layout(grid), BlockContext("block", index, 5), None).queries.destinations


def test_the_seed_decides_and_nothing_else():
    first = kept(tm.ToMeSD(seed=1, ratio=0.75))
    torch.manual_seed(123)
    kept(tm.ToMeSD(seed=9))
    assert torch.equal(first, kept(tm.ToMeSD(seed=1, ratio=0.75)))
    assert not torch.equal(first, kept(tm.ToMeSD(seed=2, ratio=0.75)))


def test_each_block_draws_its_own_and_all_samples_the_same():
    config = tm.ToMeSD(ratio=0.75)  # keeps the destinations alone
    assert not torch.equal(kept(config, index=0), kept(config, index=1))
    together = kept(config, batch=3)
    assert (together == together[0]).all()


def test_fixed_destinations_are_the_same_in_every_block():
    config = tm.ToMeSD(ratio=0.75, use_rand=False)
    assert torch.equal(kept(config, index=0), kept(config, index=4))
    assert kept(config)[0, :3].tolist() == [0, 2, 4]


def test_more_destinations_per_cell():
    config = tm.ToMeSD(ratio=0.5, per_cell=2)
    for cell_row in range(8):
        rows = kept(config)[0] // 16
        assert int((rows // 2 == cell_row).sum()) == 16  # two of each of eight cells


@pytest.mark.parametrize(("ratio", "expected"), [(0.1, 231), (0.3, 180), (0.5, 128), (0.75, 64)])
def test_ratio_rounds_to_fewer_merged_tokens(ratio, expected):
    layout = tm.ToMeSD(ratio=ratio).layout((16, 16))
    assert layout.kept == layout.kept_keys == expected


def test_edges_outside_whole_cells_are_merged_as_well():
    config = tm.ToMeSD(ratio=0.75, use_rand=False)
    assert config.layout((5, 7)).kept == 35 - 26
    tokens = torch.randn(1, 35, 4)
    operator = config.plan(tokens, config.layout((5, 7)), BlockContext("block", 0, 1), None).queries
    assert {0, 2, 4, 14, 16, 18} <= set(operator.destinations[0].tolist())


def test_cells_larger_than_the_grid_are_an_error():
    with pytest.raises(ConfigError, match=r"cell of 9 x 2 is larger than the 8 x 8 grid.*sx, sy.*min_tokens=65"):
        tm.ToMeSD(sx=9).layout((8, 8))


def test_video_cells_lie_within_a_frame():
    config = tm.ToMeSD(ratio=0.75, use_rand=False)
    tokens = torch.randn(1, 32, 4)
    operator = config.plan(tokens, config.layout((2, 4, 4)), BlockContext("block", 0, 1), None).queries
    assert operator.destinations[0].tolist() == [0, 2, 8, 10, 16, 18, 24, 26]


def test_levels_beyond_max_downsample_are_left_alone():
    config = tm.ToMeSD(max_downsample=2)
    assert config.layout((8, 8), downsample=2).kept == 32
    with pytest.raises(CannotMerge, match=r"4 times coarser .*max_downsample=2"):
        config.layout((8, 8), downsample=4)


@pytest.mark.parametrize(
    ("max_downsample", "expected"),
    [(1, {"1": 128, "2": 64, "4": 16}), (2, {"1": 128, "2": 32, "4": 16}), (4, {"1": 128, "2": 32, "4": 8})],
)
def test_levels_of_a_unet(tiny_unet, denoise, attention_sizes, max_downsample, expected):
    with tm.merged(tiny_unet, tm.ToMeSD(max_downsample=max_downsample, min_tokens=0)):
        seen = attention_sizes()
        denoise(16, 16)
    coarseness = {"down_blocks.0": "1", "down_blocks.1": "2", "mid_block": "4", "up_blocks.1": "2", "up_blocks.2": "1"}
    assert {name.split(".attentions")[0] for name in seen} == set(coarseness)
    for name, (queries, keys) in seen.items():
        assert queries == keys == expected[coarseness[name.split(".attentions")[0]]]


def test_random_cells_generate_the_same_twice(tiny_unet, denoise):
    with tm.merged(tiny_unet, tm.ToMeSD(min_tokens=0)):
        first = denoise()
        torch.manual_seed(99)
        assert torch.equal(first, denoise())
    with tm.merged(tiny_unet, tm.ToMeSD(min_tokens=0, seed=1)):
        assert not torch.equal(first, denoise())
