"""What holds for every family of models, whatever the method: one suite over all of them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any
from zlib import crc32

import pytest
import torch
from checks import SCOPES, SMALL, TILES, close, count_hooks, in_turn, key_lengths, part_lengths, session_on
from identity import Identity
from tiny_models import TINY_MODELS, TinyModel, made
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import tokenmerge as tm
from tokenmerge.errors import AlreadyAppliedError, ConfigError, NothingMergedError, UnsupportedModelError
from tokenmerge.models import family_of

# With every option that makes them merge the most, for the other methods' own tests show the rest.
ALL_PARTS: dict[str, Any] = {**SMALL, "parts": ("self", "cross", "mlp")}
OTHER_METHODS = (
    tm.ToMeSD(max_downsample=4, **ALL_PARTS),
    tm.ToMeSD(max_downsample=4, scope="stack", **ALL_PARTS),
    tm.ToFu(max_downsample=4, **ALL_PARTS),
    tm.ToDo(ratio=0.75, coarser_ratios=(0.75, 0.75), **SMALL),
    tm.LowerBound(tile=(2, 2), scope="block", **SMALL),
    *(tm.TileMean(tile=2, correction=None, scope=scope, **SMALL) for scope in ("site", "stack")),
    tm.SampledKeys(max_downsample=4, **SMALL),
)

SIZES_AND_BATCHES = [(8, 8, 3), (8, 12, 1), (8, 12, 3), (7, 9, 1), (7, 9, 3)]

every_model = pytest.mark.parametrize("tiny", TINY_MODELS, ids=str)


def suits(tiny: TinyModel, config: tm.MergeConfig) -> bool:
    keys = tiny.merges_keys and tiny.separate_keys
    return config.merged_per in tiny.scopes and (keys or not config.separate_keys)


def cases(turn: int, *configs: tm.MergeConfig) -> pytest.MarkDecorator:
    return in_turn("tiny, config", configs, suits=suits, turn=turn)


def every_method(turn: int) -> pytest.MarkDecorator:
    return cases(turn, *(dataclasses.replace(TILES, scope=scope) for scope in SCOPES), *OTHER_METHODS)


@cases(0, *(Identity(scope=scope, tiled=tiled, skip_blocks=0) for scope in SCOPES for tiled in (True, False)))
def test_merging_nothing_changes_nothing(tiny: TinyModel, config: Identity, monkeypatch: Any) -> None:
    monkeypatch.setattr(Identity, "share", "layer" if crc32(f"{tiny} {config}".encode()) % 2 else "level")
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    before = tiny.call(model, [1, 2], grid)
    tm.apply(model, config)
    close(tiny.call(model, [1, 2], grid), before)


@every_method(0)
def test_merging_runs_on_fewer_tokens_and_matters(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    with key_lengths() as full:
        before = tiny.call(model, [1], grid)
    with key_lengths() as shortened, tm.merged(model, config):
        after = tiny.call(model, [1], grid)
        merged_tokens = part_lengths(model)
    assert len(full) == len(shortened)
    shortened, full = ([keys for keys in lengths if keys != tiny.context] for lengths in (shortened, full))
    all_tokens = 2**tiny.video * 64
    if tiny.merges_keys and config.merged_per not in tiny.read_elsewhere:
        quarter = config.separate_keys or isinstance(config, tm.TileMean)
        most = all_tokens // (4 if quarter else 2) + tiny.text
        assert max(shortened) == most
        assert all(few < many for few, many in zip(shortened, full, strict=True) if many >= all_tokens)
    if not config.separate_keys:
        assert max(merged_tokens) <= all_tokens // 2 + tiny.text
    assert (before - after).abs().max() > 1e-3


@every_method(1)
def test_any_size_and_batch(tiny: TinyModel, config: tm.MergeConfig) -> None:
    # One of them for each pair, spread by its name: the full product took most of the time of all tests.
    height, width, batch = SIZES_AND_BATCHES[crc32(f"{tiny} {config}".encode()) % len(SIZES_AND_BATCHES)]
    model = made(tiny.build)
    grid = tiny.grid(height, width)
    before = tiny.call(model, range(batch), grid)
    with tm.merged(model, config):
        after = tiny.call(model, range(batch), grid)
    assert after.shape == before.shape
    assert after.isfinite().all()


@every_method(2)
def test_each_sample_is_merged_by_itself(tiny: TinyModel, config: tm.MergeConfig) -> None:
    # In double precision: what these models magnify of float32's rounding, which differs between machines, passes 1e-5.
    # Some have float32 in their own code, and are held to as much as that allows.
    model = nn.Module.double(made(tiny.build)) if tiny.double else made(tiny.build)
    grid, most = tiny.grid(8, 12), 1e-10 if tiny.double else 1e-4

    def call(*seeds: int) -> Tensor:
        inputs = tiny.inputs(seeds, grid)
        return tiny.run(model, tree_map_only(Tensor, in_double, inputs) if tiny.double else inputs)

    tm.apply(model, config)
    together = call(1, 2, 3)
    alone = torch.cat([call(seed) for seed in (1, 2, 3)])
    if not any(stack.stack.one_for_batch for stack in session_on(model).stacks):
        same(together, alone, most)
        return
    # One choice for the batch: the same samples twice ask for what they ask for once.
    never_look = isinstance(config, (tm.LowerBound, tm.ToDo, tm.TileMean, tm.SampledKeys))
    assert torch.allclose(together, alone, atol=max(most, 1e-5)) == never_look
    same(call(1, 2, 1, 2)[:2], call(1, 2), most)


def in_double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def same(one: Tensor, other: Tensor, most: float) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=most)


@cases(
    1,
    dataclasses.replace(TILES, region="stripe+global"),
    dataclasses.replace(TILES, region="tile+global", scope="block"),
    dataclasses.replace(TILES, selector="random", proportional=False, scope="stack"),
    tm.LowerBound(tile=(2, 2), **SMALL),
)
def test_other_options_run(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    tm.apply(model, config)
    assert tiny.call(model, [1, 2], grid).isfinite().all()


@cases(2, *(dataclasses.replace(TILES, scope=scope) for scope in ("site", "stack")))
def test_the_schedule_is_kept_exactly(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    grid = tiny.grid(4, 4)
    tm.apply(model, dataclasses.replace(config, min_tokens=16, select_every=(4, 2)))  # type: ignore[call-arg]
    session = session_on(model)
    tiny.call(model, [1], grid, 12.0)
    plans = session.selections
    assert plans == len({row.group for stack in session.stacks for row in stack.program.spans})
    for step in range(1, 12):
        tiny.call(model, [1], grid, 12.0 - step)
    assert session.selections == plans * 3  # 12 steps, new destinations every 4
    assert session.weightings == plans * 6  # new weights every 2
    tiny.call(model, [1], grid, 12.0)
    assert session.selections == plans * 4  # a later timestep: the next generation


@every_method(3)
def test_a_second_generation_owes_nothing_to_the_first(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    tm.apply(model, config)
    first = [tiny.call(model, [1], grid, timestep) for timestep in (3.0, 2.0)]
    tiny.call(model, [2], grid, 3.0)
    tiny.call(model, [2, 3], tiny.grid(8, 12), 2.0)
    again = [tiny.call(model, [1], grid, timestep) for timestep in (3.0, 2.0)]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


@every_method(4)
def test_removing_gives_back_the_model(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    before = tiny.call(model, [1], grid)
    hooks = count_hooks(model)
    handle = tm.apply(model, config)
    tiny.call(model, [1], grid)
    handle.remove()
    assert torch.equal(tiny.call(model, [1], grid), before)
    assert count_hooks(model) == hooks


@every_method(5)
def test_a_copy_is_merged_and_independent(tiny: TinyModel, config: tm.MergeConfig) -> None:
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    unmerged = tiny.call(model, [1], grid)
    handle = tm.apply(model, config)
    merged = tiny.call(model, [1], grid)
    twin = copy.deepcopy(model)
    handle.remove()
    assert torch.equal(tiny.call(twin, [1], grid, 0.7), tiny.call(twin, [1], grid, 0.7))
    session_on(twin).reset()
    assert torch.equal(tiny.call(twin, [1], grid), merged)
    assert torch.equal(tiny.call(model, [1], grid), unmerged)
    assert tm.remove(twin)
    assert torch.equal(tiny.call(twin, [1], grid), unmerged)


@every_model
def test_doing_nothing_is_an_error(tiny: TinyModel) -> None:
    model = made(tiny.build)
    with tm.merged(model, tm.ToMA(skip_blocks=0)), pytest.raises(NothingMergedError, match="min_tokens"):
        tiny.call(model, [1], tiny.grid(4, 4))
    with pytest.raises(NothingMergedError, match="skip_blocks"):
        tm.apply(model, tm.ToMA(skip_blocks=1000))


@every_model
def test_applying_twice_is_an_error(tiny: TinyModel) -> None:
    model = made(tiny.build)
    with tm.merged(model, tm.ToMA(skip_blocks=0)), pytest.raises(AlreadyAppliedError, match="remove"):
        tm.apply(model, tm.ToMA(skip_blocks=0))


@every_model
def test_example_inputs_are_a_call(tiny: TinyModel) -> None:
    model = made(tiny.build)
    family = family_of(model)
    for device in ("cpu", "meta"):
        with torch.no_grad():
            model = model.to(device)
            if device == "meta":
                family.prepare_meta(model)
            inputs = family.example_inputs(model, (256, 256 if tiny.square else 128), 2)
            with tm.merged(model, TILES):
                output = tiny.run(model, inputs)
                grids = [stack.call.grid for stack in session_on(model).stacks if stack.call is not None]
        assert output.device.type == device
        assert output.shape[0] == 2
        assert all(grid[-2] == (2 - tiny.square) * grid[-1] for grid in grids)


def test_a_model_that_does_not_fit_is_an_error_with_the_reason() -> None:
    kind = type("PriorTransformer", (nn.Module,), {})
    with pytest.raises(UnsupportedModelError, match="no spatial tokens"):
        tm.apply(kind(), tm.TileMean())


def test_an_unknown_model_is_an_error_that_says_where_the_known_are_listed() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Linear.*50 families.*docs/models.md"):
        tm.apply(nn.Linear(2, 2), tm.TileMean())


def test_a_size_that_is_refused_leaves_the_next_one_alone() -> None:
    pixart = next(model for model in TINY_MODELS if model.name == "pixart")
    model = made(pixart.build)
    tm.apply(model, tm.ToMA(min_tokens=0))
    before = pixart.call(model, [1], (8, 8))
    with pytest.raises(ConfigError, match="larger than the 2 x 16 grid"):
        pixart.call(model, [1], (2, 16))
    assert torch.equal(pixart.call(model, [1], (8, 8)), before)


@pytest.mark.parametrize("skip_blocks", [None, ("mid_block.*",)])
def test_a_unet_without_transformers_is_an_error(skip_blocks: Any) -> None:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        block_out_channels=(8,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        mid_block_type=None,
        layers_per_block=1,
        norm_num_groups=4,
    )
    with pytest.raises(NothingMergedError, match="none of the transformer blocks"):
        tm.apply(model, tm.ToMA(skip_blocks=skip_blocks))
