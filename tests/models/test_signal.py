"""What similarity is computed on: plans are those that the same method makes of what the model itself computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, root_of
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor, nn
from torch._dynamo.utils import counters

import tokenmerge as tm
from tokenmerge.errors import ConfigError
from tokenmerge.methods.interfaces import Place
from tokenmerge.models import family_of
from tokenmerge.models.base import Block

# Tokens in the grid's own order, and one plan that the first block makes for all of its grid.
GLOBAL: dict[str, Any] = {"region": "global", "ratio": 0.5, "share": "model", "detail_every": 0, **SMALL}
WITH_ATTENTION = [model for model in TINY_MODELS if model.name != "sana"]


def first_block(model: nn.Module, skip: int) -> Block:
    blocks = [block for stack in family_of(model).stacks(model) for block in stack.blocks]
    return blocks[skip]


def captured(module: nn.Module, call: Any, output: bool) -> Tensor:
    """What a module is given, or gives, the first time it runs in a call."""
    seen: list[Tensor] = []

    def note_input(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    def note_output(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(output)

    handle = (
        module.register_forward_hook(note_output)
        if output
        else module.register_forward_pre_hook(note_input, with_kwargs=True)
    )
    call()
    handle.remove()
    return seen[0]


def own_signal(model: nn.Module, what: TinyModel, signal: str, grid: tuple[int, ...], skip: int) -> Tensor:
    """The image's tokens (B, N, C) of the first merged block's self-attention, as the unmerged model computes them."""
    block = first_block(model, skip)
    part = next(part for part in block.parts if "self" in part.kinds)
    attention: Any = block.module.get_submodule(part.attention or part.module)

    def call() -> None:
        what.call(model, [1, 2], grid)

    if signal == "normed":
        tokens = captured(attention, call, output=False)
    elif hasattr(attention, "to_qkv_mlp_proj") or getattr(attention, "norm_k", None) is not None:
        tokens = captured(attention.norm_k, call, output=True)
    else:
        tokens = captured(attention.to_k, call, output=True)
    count = torch.Size(grid).numel()
    if tokens.dim() == 4:  # heads apart: (B, N, heads, D) or (B, heads, N, D)
        tokens = tokens.flatten(2) if tokens.shape[1] >= count else tokens.transpose(1, 2).flatten(2)
    if tokens.shape[1] == count:
        return tokens
    return tokens[:, :count] if part.text == "last" else tokens[:, -count:]


def picks_of(model: nn.Module) -> Tensor:
    """The destinations in use, as the first block that merges has them."""
    block = next(block for stack in root_of(model).stacks for block in stack.blocks if block.active)
    picks = block.operators.picks
    assert picks is not None
    return picks


def one_for_batch(model: nn.Module) -> bool:
    return any(stack.one_for_batch for stack in family_of(model).stacks(model))


@pytest.mark.parametrize("what", WITH_ATTENTION, ids=str)
@pytest.mark.parametrize("signal", ["normed", "keys"])
@pytest.mark.parametrize("last", [False, True], ids=["first block", "last block"])
@pytest.mark.parametrize("kv_ratio", [None, 0], ids=["alike", "queries alone"])
def test_plans_come_from_what_the_attention_itself_computes(
    what: TinyModel, signal: Any, last: bool, kv_ratio: Any
) -> None:
    model, grid = made(what.build), what.grid(8, 8)
    count = sum(len(stack.blocks) for stack in family_of(model).stacks(model))
    skip = count - 1 if last else 0
    config = tm.ToMA(signal=signal, kv_ratio=kv_ratio, **{**GLOBAL, "skip_blocks": skip})
    signal_tokens = own_signal(model, what, signal, grid, skip)
    place = Place("", 0, 1, one_for_batch=one_for_batch(model))
    expected = config.plan(signal_tokens, config.layout(grid), place, None)
    hidden = tm.ToMA(**{**GLOBAL, "skip_blocks": skip})
    with tm.merged(model, hidden):
        what.call(model, [1, 2], grid)
        by_hidden = picks_of(model)
    with tm.merged(model, config):
        what.call(model, [1, 2], grid)
        assert torch.equal(picks_of(model), expected.picks)
    assert not torch.equal(by_hidden, expected.picks)


@pytest.mark.parametrize("what", [model for model in TINY_MODELS if model.name in ("sd15", "flux", "sd3")], ids=str)
@pytest.mark.parametrize("signal", ["normed", "keys", "previous"])
def test_images_differ_from_those_by_hidden_states(what: TinyModel, signal: Any) -> None:
    model, grid = made(what.build), what.grid(8, 8)
    images = []
    for chosen in ("hidden", signal):
        with tm.merged(model, tm.ToMA(ratio=0.75, signal=chosen, tile=(4, 4), detail_every=0, **SMALL)):
            images.append([what.call(model, [1], grid, timestep) for timestep in (0.9, 0.8)][1])
    assert (images[0] - images[1]).abs().max() > 1e-4


@pytest.mark.parametrize("what", [model for model in TINY_MODELS if model.name in ("pixart", "flux", "sd3")], ids=str)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("tile", [None, (4, 4)], ids=["grid order", "tile order"])
@pytest.mark.parametrize("whole", [False, True], ids=["merged", "whole"])
def test_previous_takes_what_the_block_gave_a_step_before(what: TinyModel, scope: Any, tile: Any, whole: bool) -> None:
    model, grid = made(what.build), what.grid(8, 8)
    tiles = {} if tile is None else {"region": "tile", "tile": tile}
    options = {**GLOBAL, **tiles, "share": "layer", "detail_every": 2 if whole else 0}
    config = tm.ToMA(signal="previous", scope=scope, **options)
    tm.apply(model, config)
    root = root_of(model)
    what.call(model, [1], grid, 0.9)
    block = next(block for stack in root.stacks for block in stack.blocks)
    assert block.memory is not None
    if whole:
        merged = block.memory.current.output
        what.call(model, [1], grid, 0.85)
        assert merged is not None
        assert not torch.equal(block.memory.current.output, merged)
    given = block.memory.current.output
    assert given is not None
    assert given.shape[:2] == (1, 64)
    assert block.layout is not None
    what.call(model, [1], grid, 0.8)
    expected = config.plan(given, block.layout, block.place, None)
    assert torch.equal(picks_of(model), expected.picks)
    assert root.selections == 2 * len(
        {id(block.group) for block in root.stacks[0].blocks}
    )  # the second step chose again


def test_what_is_remembered_is_the_blocks_output() -> None:
    """Merging nothing but keys leaves queries in their order: the block's output is what its hooks see."""
    unet = tiny("sd15")
    model, grid = made(unet.build), (8, 8)
    tm.apply(model, tm.ToMA(signal="previous", **GLOBAL))
    block = root_of(model).stacks[0].blocks[0]
    given = captured(block.block.module, lambda: unet.call(model, [1], grid, 0.9), output=True)
    assert block.memory is not None
    assert torch.equal(block.memory.current.output, given)
    others = [other for stack in root_of(model).stacks for other in stack.blocks if other.group is block.group]
    assert [other.memory is not None for other in others] == [True] + [False] * (len(others) - 1)


def test_guidance_branches_remember_each_their_own() -> None:
    pixart = tiny("pixart")
    model, grid = made(pixart.build), (8, 8)
    tm.apply(model, tm.ToMA(signal="previous", **GLOBAL))
    pixart.call(model, [1], grid, 0.9)
    memory = root_of(model).stacks[0].blocks[0].memory
    assert memory is not None
    first = memory.current.output
    pixart.call(model, [2], grid, 0.9)
    assert memory.current.output is not first
    pixart.call(model, [1], grid, 0.8)
    assert memory.branches[0] is memory.current
    pixart.call(model, [1], grid, 0.9)  # another generation
    assert [branch.output is not None for branch in memory.branches] == [True]


@pytest.mark.parametrize("method", [tm.ToMeSD, tm.ToFu])
@pytest.mark.parametrize("signal", ["normed", "keys", "previous"])
def test_matching_methods_take_a_signal_too(method: Any, signal: Any) -> None:
    unet = tiny("sd15")
    model, grid = made(unet.build), (8, 8)
    images = []
    for chosen in ("hidden", signal):
        with tm.merged(model, method(signal=chosen, **SMALL)):
            images.append([unet.call(model, [1], grid, timestep) for timestep in (0.9, 0.8)][1])
    assert (images[0] - images[1]).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (tm.ToMA, {"signal": "loudness"}, "'loudness'.*'hidden', 'normed', 'keys', 'previous'"),
        (tm.ToMA, {"signal": "keys", "scope": "stack"}, "needs scope='site'"),
        (tm.ToMA, {"signal": "normed", "parts": ("mlp",)}, "'self' among parts"),
        (tm.ToDo, {"signal": "keys"}, "ToDo does not take: use 'hidden'"),
        (tm.LowerBound, {"signal": "previous"}, "LowerBound does not take: use 'hidden'"),
    ],
)
def test_what_cannot_be_is_refused(method: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        method(**options)


@pytest.mark.parametrize("signal", ["normed", "keys"])
def test_a_model_without_such_an_attention_is_refused(signal: Any) -> None:
    with pytest.raises(ConfigError, match=r"does not fit Sana: .*Use signal='hidden'"):
        tm.apply(made(tiny("sana").build), tm.ToMA(signal=signal, **SMALL))


@pytest.mark.parametrize("signal", ["keys", "previous"])
def test_compiled_blocks_take_it_too(signal: Any) -> None:
    flux, timesteps = tiny("flux"), (0.9, 0.8, 0.7, 0.6)
    grid = flux.grid(8, 8)
    config = tm.ToMA(signal=signal, tile=(4, 4), select_every=2, weights_every=2, **SMALL)
    eager = made(flux.build)
    with tm.merged(eager, config):
        expected = [flux.call(eager, [1], grid, timestep) for timestep in timesteps]
    torch._dynamo.reset()
    counters.clear()
    model = made(flux.build)
    tm.apply(model, config)
    model.compile_repeated_blocks(fullgraph=True, backend="aot_eager")
    for one, timestep in zip(expected, timesteps, strict=True):
        torch.testing.assert_close(one, flux.call(model, [1], grid, timestep), atol=1e-5, rtol=1e-5)
    graphs = counters["stats"]["unique_graphs"]
    for timestep in timesteps:
        flux.call(model, [1], grid, timestep)
    assert counters["stats"]["unique_graphs"] == graphs
    torch._dynamo.reset()
