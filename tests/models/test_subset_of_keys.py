"""The subset of keys that full steps read: which they are, and when all are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, session_on
from tiny_models import TinyModel, made, tiny
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.engine.subset import key_distance, key_subset
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models import family_of
from tokenmerge.models import published as architectures

DETAIL: dict[str, Any] = {"ratio": 0.5, "tile": (4, 4), "correction": tm.FullSteps(every=2, within=None), **SMALL}
FAMILIES = [tiny(name) for name in ("sd15", "sdxl", "pixart")]
COARSEST = {"sd15": 8, "sdxl": 2, "pixart": 1}
FULL, MERGED = 1000.0, 990.0


def full_step(model: nn.Module, what: TinyModel, grid: Any = None) -> Tensor:
    """What the first step of an image returns."""
    return what.call(model, (1, 2), grid or what.grid(8, 8), FULL)


@pytest.mark.parametrize(
    ("grid", "side", "fits"),
    [((8, 8), 2, 2), ((6, 10), 2, 2), ((1, 4, 8, 8), 2, 2), ((8, 12), 4, 4), ((2, 8, 4), 4, 4), ((6, 8), 4, 2)],
)
def test_one_token_is_left_of_every_tile_that_divides_the_grid(grid: tuple[int, ...], side: int, fits: int) -> None:
    kept = key_subset(grid, side, torch.device("cpu"))
    assert kept is not None
    rows, columns = grid[-2] // fits, grid[-1] // fits
    mask = torch.zeros(grid).flatten().index_fill(0, kept, 1).view(-1, rows, fits, columns, fits)
    assert torch.equal(mask.sum(dim=(2, 4)), torch.ones(mask.shape[0], rows, columns))


@pytest.mark.parametrize(("grid", "side"), [((7, 8), 2), ((8, 9), 4), ((8, 8), 1)])
def test_tiles_that_do_not_divide_the_grid_leave_nothing_even(grid: tuple[int, ...], side: int) -> None:
    assert key_subset(grid, side, torch.device("cpu")) is None


def test_keys_lie_as_far_apart_as_tokens_two_levels_down() -> None:
    """On each level of Stable Diffusion 1.5; half as far in SDXL and PixArt, which have two levels and one."""
    distances = {name: [key_distance(level, coarsest) for level in (1, 2, 4, 8)] for name, coarsest in COARSEST.items()}
    assert distances == {"sd15": [4, 2, 1, 1], "sdxl": [2, 1, 1, 1], "pixart": [2, 1, 1, 1]}
    for name, coarsest in COARSEST.items():
        model = architectures.build(name)
        assert max(stack.downsample for stack in family_of(model).stacks(model)) == coarsest


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("what", FAMILIES, ids=str)
def test_a_full_step_reads_the_keys_that_sampled_keys_reads(what: TinyModel, scope: Any) -> None:
    """All queries and all of the MLP, and the keys that `SampledKeys` would take: those of the finest level alone."""
    model = made(what.build)
    first_sample = tm.SampledKeys(**SMALL)
    with tm.merged(model, first_sample):
        expected = full_step(model, what)
    before = full_step(model, what)
    assert not torch.allclose(expected, before, atol=1e-4)
    with tm.merged(model, tm.ToMA(scope=scope, **DETAIL)):
        torch.testing.assert_close(full_step(model, what), expected)
    assert torch.equal(full_step(model, what), before)


def fused(model: Any) -> None:
    model.fuse_qkv_projections()


def perturbed(model: Any) -> None:
    from diffusers.models.attention_processor import PAGIdentitySelfAttnProcessor2_0

    for module in model.modules():
        if hasattr(module, "attn1"):
            module.attn1.set_processor(PAGIdentitySelfAttnProcessor2_0())


@pytest.mark.parametrize(
    ("options", "keep", "change"),
    [
        ({"keys": "all"}, None, None),
        ({}, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), None),
        ({"parts": ("cross", "mlp")}, None, None),
        ({}, None, fused),
        ({"proportional": False}, None, perturbed),
    ],
    ids=["all keys", "kept parts", "self left out", "fused", "perturbed"],
)
def test_full_steps_that_read_all_keys(options: dict[str, Any], keep: Tensor | None, change: Any) -> None:
    what = tiny("sd15")
    model = made(what.build)
    if change is not None:
        change(model)
    before = full_step(model, what)
    with tm.merged(model, tm.ToMA(**{**DETAIL, **options}), keep=keep):
        assert torch.equal(full_step(model, what), before)


def test_attention_that_is_perturbed_between_images_is_refused() -> None:
    what = tiny("sd15")
    model = made(what.build)
    with tm.merged(model, tm.ToMA(**{**DETAIL, "tile": (2, 2)})):
        what.call(model, (1,), what.grid(8, 8), FULL)
        perturbed(model)
        with pytest.raises(MergeRuntimeError, match="PAG"):
            what.call(model, (1,), what.grid(8, 8), MERGED)


def test_a_grid_of_odd_sides_reads_all_keys() -> None:
    what = tiny("pixart")
    model = made(what.build)
    grid = what.grid(7, 9)
    before = full_step(model, what, grid)
    with tm.merged(model, tm.ToMA(**DETAIL)):
        assert torch.equal(full_step(model, what, grid), before)


@pytest.mark.parametrize("cached", [False, True])
def test_what_a_cache_keeps_is_left_alone(cached: bool) -> None:
    from diffusers import PyramidAttentionBroadcastConfig, apply_pyramid_attention_broadcast

    what = tiny("pixart")
    model = made(what.build)
    if cached:
        config = PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=2,
            spatial_attention_timestep_skip_range=(-1, 1001),
            current_timestep_callback=lambda: 500,
        )
        apply_pyramid_attention_broadcast(model, config)  # keeps what every self-attention gives
    with tm.merged(model, tm.ToMA(**DETAIL)):
        root = session_on(model)
        full_step(model, what)
        names = {row.name for row in root.stacks[0].program.attentions if row.subset is not None}
        assert len(names) == (0 if cached else 3)


def test_explain_counts_the_keys_that_are_read() -> None:
    model: Any = made(tiny("pixart").build)
    works = []
    for keys in ("merged", "all"):
        with tm.merged(model, tm.ToMA(keys=keys, scope="site", **DETAIL)) as handle:  # type: ignore[arg-type]
            explanation = handle.explain(size=(128, 128))
        works.append(explanation.models[0].multiply_adds)
        assert "at a full step" in str(explanation)
    fewer, every = works
    assert fewer.full - fewer.select < every.full - every.select == every.unmerged
    model = made(tiny("sd15").build)
    model.fuse_qkv_projections()
    with tm.merged(model, tm.ToMA(**DETAIL)) as handle:
        fused_work = handle.explain(size=(64, 64)).models[0].multiply_adds
    with tm.merged(made(tiny("sd15").build), tm.ToMA(**DETAIL)) as handle:
        assert handle.explain(size=(64, 64)).models[0].multiply_adds.full < fused_work.full
