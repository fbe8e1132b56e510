"""A ratio that changes over the steps, in running models: what is merged when, and what is left alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, attention_lengths, has_scope, in_turn, key_lengths, part_lengths, session_on
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor, nn
from torch._dynamo.utils import counters

import tokenmerge as tm
from tokenmerge.errors import MergeRuntimeError, NothingMergedError

# Ten steps, so that 0.0 to 0.9 of the noise are gone.
TIMESTEPS = [1000.0 - 100 * step for step in range(10)]
TILES: dict[str, Any] = {"tile": (4, 4), **SMALL}
DITS = [model for model in TINY_MODELS if model.name in ("pixart", "flux", "sd3", "wan")]


def generate(model: nn.Module, what: TinyModel, side: int = 8) -> list[Tensor]:
    grid = what.grid(side, side)
    return [what.call(model, [1], grid, timestep) for timestep in TIMESTEPS]


def lengths(model: nn.Module, what: TinyModel, side: int = 8) -> list[set[int]]:
    """How many tokens parts ran on, step by step; nothing where none merged."""
    grid, seen = what.grid(side, side), []
    for timestep in TIMESTEPS:
        session_on(model).noted.clear()
        what.call(model, [1], grid, timestep)
        seen.append(part_lengths(model))
    return seen


@pytest.mark.parametrize("scope", SCOPES)
def test_a_list_is_followed_over_the_steps(scope: Any) -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    tm.apply(model, tm.ToMA(ratio=[0.25, 0.5, 0, 0.75, 0.5], scope=scope, **TILES))
    assert lengths(model, pixart) == [{48}] * 2 + [{32}] * 2 + [set()] * 2 + [{16}] * 2 + [{32}] * 2


@in_turn("what, scope", SCOPES, DITS)
def test_steps_of_ratio_zero_run_as_if_nothing_was_there(what: TinyModel, scope: Any) -> None:
    model = made(what.build)
    before = generate(model, what)
    with tm.merged(model, tm.ToMA(ratio=[0.5, 0], scope=scope, **TILES)):
        after = generate(model, what)
    for step in range(5):
        assert (before[step] - after[step]).abs().max() > 1e-4
        assert torch.equal(before[step + 5], after[step + 5])


@in_turn("what, scope", SCOPES, suits=has_scope)
def test_a_list_gives_what_its_numbers_give(what: TinyModel, scope: Any) -> None:
    """Destinations are chosen when the ratio changes, so the step of the change is that of a fresh generation."""
    model, grid = made(what.build), what.grid(8, 8)
    with tm.merged(model, tm.ToMA(ratio=[0.25, 0.5], scope=scope, **TILES)):
        changing = generate(model, what)
    for step, ratio in ((0, 0.25), (5, 0.5)):
        with tm.merged(model, tm.ToMA(ratio=ratio, scope=scope, **TILES)):
            assert torch.equal(what.call(model, [1], grid, TIMESTEPS[step]), changing[step])


@pytest.mark.parametrize("config", [tm.ToMeSD(ratio=[0.25, 0.5]), tm.ToFu(ratio=[0.25, 0.5]), tm.ToDo(ratio=[0, 0.75])])
def test_other_methods_follow_a_list_too(config: tm.MergeConfig) -> None:
    unet = tiny("sd15")
    model = made(unet.build)
    tm.apply(model, dataclasses.replace(config, **SMALL))
    with key_lengths() as keys:
        generate(model, unet)
    per_step = len(keys) // len(TIMESTEPS)
    first, last = max(keys[:per_step]), max(keys[-per_step:])
    assert (first, last) == ((64, 16) if isinstance(config, tm.ToDo) else (48, 32))


@pytest.mark.parametrize("name", ["flux", "ltx", "qwen-image"])  # one for each way of weighing keys
@pytest.mark.parametrize("keys", ["sampled", "all"])
def test_separate_keys_follow_a_list(name: str, keys: Any) -> None:
    what = tiny(name)
    model = made(what.build)
    seen = []
    with attention_lengths() as both:
        tm.apply(model, tm.ToMA(ratio=[0.25, 0.75], keys=keys, **TILES))
        for timestep in (TIMESTEPS[0], TIMESTEPS[-1]):
            what.call(model, [1], what.grid(8, 8), timestep)
            seen.append(max(both))
            both.clear()
    frames, text = 2**what.video, what.text
    expected = [(kept, 64 if keys == "all" else kept) for kept in (48, 16)]
    assert seen == [(frames * queries + text, frames * read + text) for queries, read in expected]


def test_a_change_makes_new_destinations_and_nothing_else_does() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    tm.apply(model, tm.ToMA(ratio=[0.25, 0.5], select_every=10, **TILES))
    generate(model, pixart)
    assert session_on(model).selections == 2
    generate(model, pixart)
    assert session_on(model).selections == 4


def test_what_another_ratio_left_behind_is_let_go_at_the_next_selection() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    tm.apply(model, tm.ToMA(ratio=[0.25, 0.5], select_every=5, **TILES))
    generate(model, pixart)
    kept = [
        branch
        for group in session_on(model).state._groups.values()
        for branch in group.branches.values()
        if branch.operators
    ]
    assert len(kept) == 1


def test_every_third_step_merges() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    before = generate(model, pixart)
    with tm.merged(model, dataclasses.replace(tm.ToMA.released(), **TILES)):
        after = generate(model, pixart)
    assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [
        step % 3 != 0 for step in range(10)
    ]


def test_a_ratio_for_the_last_steps_alone_is_a_ratio() -> None:
    pixart = tiny("pixart")
    late = (*[0.0] * 23, 0.5, 0.5)
    model = made(pixart.build)
    with tm.merged(model, tm.ToMA(ratio=late, **TILES)) as handle:
        pixart.call(model, [1], (8, 8), 1000.0)
        assert not part_lengths(model)
        pixart.call(model, [1], (8, 8), 20.0)
        assert part_lengths(model) == {32}
        stacks = handle.explain(size=(128, 128)).models[0].stacks
    assert [(stack.during, stack.kept) for stack in stacks] == [("0% to 92%", 64), ("92% to 100%", 32)]


def test_a_list_that_merges_nothing_on_this_grid_is_an_error_at_the_first_step() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    config = tm.ToMA(ratio=[0.01, 0.02], **TILES)
    with tm.merged(model, config), pytest.raises(NothingMergedError, match="keeps all 16 tokens"):
        pixart.call(model, [1], (8, 8), 1000.0)
    with tm.merged(model, dataclasses.replace(config, ratio=(0.01, 0.5))):
        pixart.call(model, [1], (8, 8), 1000.0)  # it will merge later


def test_a_ratio_that_changes_needs_timesteps() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    inputs = {**pixart.inputs([1], (8, 8)), "timestep": torch.empty(1, device="meta")}
    with tm.merged(model, tm.ToMA(ratio=[0.25, 0.5], **TILES)), pytest.raises(MergeRuntimeError, match="timestep"):
        model(**inputs)


@pytest.mark.parametrize(("skip", "merged"), [((1, 1), {1}), ((0, 1), {0, 1}), ((2, 0), {2}), (1, {1, 2})])
def test_first_and_last_blocks_can_be_spared(skip: Any, merged: set[int]) -> None:
    model = made(tiny("pixart").build)
    tm.apply(model, tm.ToMA(skip_blocks=skip, min_tokens=0))
    described = [stack.described for stack in session_on(model).stacks]
    assert {each.numbers[block.name] for each in described for block in each.merging} == merged


def test_last_blocks_of_a_unet_are_those_that_run_last() -> None:
    model = made(tiny("sd15").build)
    handle = tm.apply(model, tm.ToMA(skip_blocks=(1, 2), min_tokens=0))
    names = [block.name for stack in handle._sessions[0].stacks for block in stack.described.merging]
    assert names[0].startswith("down_blocks.1")
    assert names[-1].startswith("up_blocks.0") or names[-1].startswith("up_blocks.1.attentions.0")


def test_explain_tells_what_merges_when() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    with tm.merged(model, dataclasses.replace(tm.ToMA.released(), ratio=(0.25, 0.5), **TILES)) as handle:
        explanation = handle.explain(size=(128, 128))
    rows = [(stack.during, stack.kept) for stack in explanation.models[0].stacks]
    assert rows == [("0% to 50%", 48), ("50% to 100%", 32)]
    assert "ratio 0.25 > 0.5" in str(explanation)
    assert "merged only every 3 steps" in str(explanation)
    work = explanation.models[0].multiply_adds
    single = []
    for ratio in (0.25, 0.5):
        config = dataclasses.replace(tm.ToMA.released(ratio), **TILES)
        with tm.merged(model, config) as handle:
            single.append(handle.explain(size=(128, 128)).models[0].multiply_adds)
    assert work.steady == round(sum(one.steady for one in single) / 2)
    assert work.average == pytest.approx(sum(one.average for one in single) / 2)
    # Of thirty steps ten merge: three select, three compute weights, four reuse.
    by_hand = (3 * single[0].select + 3 * single[0].weights + 4 * single[0].steady + 20 * single[0].unmerged) / 30
    assert single[0].average == pytest.approx(by_hand)


@pytest.mark.parametrize("scope", ["site", "stack"])
def test_compiled_blocks_follow_with_a_bounded_number_of_graphs(scope: Any) -> None:
    flux = tiny("flux")
    config = tm.ToMA(ratio=[0.25, 0, 0.5], scope=scope, **TILES)
    eager = made(flux.build)
    with tm.merged(eager, config):
        expected = generate(eager, flux)
    torch._dynamo.reset()
    counters.clear()
    model = made(flux.build)
    tm.apply(model, config)
    model.compile_repeated_blocks(fullgraph=True, backend="aot_eager")
    for one, other in zip(expected, generate(model, flux), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    graphs = counters["stats"]["unique_graphs"]
    generate(model, flux)
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
    torch._dynamo.reset()
