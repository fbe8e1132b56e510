"""ToDo: keys and values from a coarser grid, on the levels that were asked for."""

import pytest
import torch

import tokenmerge as tm
from tokenmerge.config.interfaces import BlockContext, CannotMerge


@pytest.mark.parametrize("channels", [320, 640, 48])
@pytest.mark.parametrize("grid", [(8, 12), (7, 9)])
def test_keys_are_what_nearest_interpolation_gives(grid, channels):
    tokens = torch.randn(2, grid[0] * grid[1], channels)
    config = tm.ToDo()
    operators = config.plan(tokens, config.layout(grid), BlockContext("block", 0, 1), None)
    image = tokens.transpose(1, 2).reshape(2, channels, *grid)
    smaller = torch.nn.functional.interpolate(image, size=(grid[0] // 2, grid[1] // 2), mode="nearest")
    assert operators.queries is None
    assert torch.equal(operators.keys.merge(tokens), smaller.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(("ratio", "keys"), [(0.75, 64), (8 / 9, 25), (0.9375, 16), (0.5, 121)])
def test_ratio_is_the_fraction_of_keys_left_out(ratio, keys):
    layout = tm.ToDo(ratio=ratio).layout((16, 16))
    assert (layout.kept, layout.kept_keys) == (256, keys)


def test_levels_have_their_own_factors():
    config = tm.ToDo.by_factor(4, 2)
    assert config.layout((16, 16), downsample=1).kept_keys == 16
    assert config.layout((8, 8), downsample=2).kept_keys == 16
    with pytest.raises(CannotMerge, match="4 times coarser"):
        config.layout((4, 4), downsample=4)
    with pytest.raises(CannotMerge, match="2 times coarser"):
        tm.ToDo(coarser_ratios=(0, 0.75)).layout((8, 8), downsample=2)


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (tm.ToDo(min_tokens=0), {256: 64, 64: 64, 16: 16}),
        (tm.ToDo(min_tokens=0, ratio=0.9375, coarser_ratios=(0.75,)), {256: 16, 64: 16, 16: 16}),
    ],
)
def test_every_query_stays_and_fewer_keys_are_seen(tiny_unet, denoise, attention_sizes, config, keys):
    with tm.merged(tiny_unet, config):
        seen = attention_sizes()
        denoise(16, 16)
    assert len(seen) == 7
    assert {queries for queries, _ in seen.values()} == {256, 64, 16}
    assert all(keys[queries] == found for queries, found in seen.values())


def test_the_unet_gives_what_attention_on_pooled_tokens_gives(tiny_unet, denoise):
    pooled_rows = torch.arange(256).view(16, 16)[::2, ::2].flatten()
    finest = [
        module
        for name, module in tiny_unet.named_modules()
        if name.endswith("attn1") and name.startswith(("down_blocks.0", "up_blocks.2"))
    ]

    def pool(module, args, kwargs):
        return args, {**kwargs, "encoder_hidden_states": args[0][:, pooled_rows]}

    handles = [module.register_forward_pre_hook(pool, with_kwargs=True) for module in finest]
    expected = denoise(16, 16)
    for handle in handles:
        handle.remove()
    with tm.merged(tiny_unet, tm.ToDo()):
        torch.testing.assert_close(denoise(16, 16), expected, atol=1e-5, rtol=0)
    assert not torch.equal(denoise(16, 16), expected)
