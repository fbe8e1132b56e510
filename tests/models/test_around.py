"""Merging once around a transformer of a UNet: its projections run on merged tokens, its norm and its sum on all."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from checks import SMALL, TILES, count_hooks, operators_on, session_on
from tiny_models import TinyModel, made, tiny
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models import family_of

STACK = dataclasses.replace(TILES, scope="stack")
UNETS = [tiny("sd15"), tiny("sdxl")]  # with projections that are convolutions, and linear ones


def transformers(model: nn.Module) -> list[Any]:
    return [stack.stack.owner for stack in session_on(model).stacks]


@contextmanager
def seen(modules: list[nn.Module]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What goes into each of the modules and comes out, hooks of others included."""
    calls: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append((args[0] if args else kwargs["hidden_states"], output[0] if isinstance(output, tuple) else output))

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    yield calls
    for handle in handles:
        handle.remove()


def tokens_in(tensor: Tensor) -> int:
    return tensor.shape[1] if tensor.dim() == 3 else tensor.shape[-2] * tensor.shape[-1]


def by_hand(owner: Any, image: Tensor, operator: Any, text: Tensor, order: Any) -> Tensor:
    """x + U out(blocks(in(M norm(x))))"""
    normed = owner.norm(image).flatten(2).transpose(1, 2)
    tokens = operator.merge(normed if order is None else order.gather(normed))
    linear = isinstance(owner.proj_in, nn.Linear)
    tokens = owner.proj_in(tokens) if linear else _as_image(owner.proj_in, tokens)
    for block in owner.transformer_blocks:
        tokens = block(tokens, encoder_hidden_states=text)
    tokens = owner.proj_out(tokens) if linear else _as_image(owner.proj_out, tokens)
    added = operator.spread(tokens) if order is None else order.scatter(operator.unmerge(tokens))
    return image + added.transpose(1, 2).reshape(image.shape)


def _as_image(convolution: nn.Module, tokens: Tensor) -> Tensor:
    out: Tensor = convolution(tokens.transpose(1, 2)[..., None])
    return out[..., 0].transpose(1, 2)


@pytest.mark.parametrize("what", UNETS, ids=str)
@torch.no_grad()
def test_it_is_what_it_says(what: TinyModel) -> None:
    """Every transformer gives what its own modules give by hand, with the operators of its plan."""
    model = made(what.build)
    config = dataclasses.replace(STACK, proportional=False)
    with tm.merged(model, config):
        root = session_on(model)
        owners = transformers(model)
        images: list[Tensor] = []
        handles = [
            owner.register_forward_pre_hook(
                lambda _, args, kwargs: images.append(args[0]), prepend=True, with_kwargs=True
            )
            for owner in owners
        ]
        with seen(owners) as calls:
            what.call(model, (1, 2), what.grid(8, 8))
        for handle in handles:
            handle.remove()
        operators = [
            operators_on(model, number).queries if stack.program.wraps else None
            for number, stack in enumerate(root.stacks)
        ]
        orders = [stack.program.layout.regions if stack.program.wraps else None for stack in root.stacks]
    assert any(operators)
    text = what.inputs((1, 2), what.grid(8, 8))["encoder_hidden_states"]
    for owner, image, (_, given), operator, order in zip(owners, images, calls, operators, orders, strict=True):
        if operator is not None:
            torch.testing.assert_close(given, by_hand(owner, image, operator, text, order), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "merged"),
    [
        ({}, True),
        ({"scope": "block"}, False),
        ({"scope": "site"}, False),
        ({"skip_blocks": ("down_blocks.*.transformer_blocks.0",)}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("what", UNETS, ids=str)
def test_projections_run_on_merged_tokens_where_all_of_a_stack_is_merged_at_once(
    what: TinyModel, options: dict[str, Any], merged: bool
) -> None:
    model = made(what.build)
    with tm.merged(model, dataclasses.replace(STACK, **options)):
        stacks = [stack.stack for stack in session_on(model).stacks]
        owners: list[Any] = [stack.owner for stack in stacks if stack.name.startswith("down_blocks")]
        into, out, norms = ([getattr(owner, name) for owner in owners] for name in ("proj_in", "proj_out", "norm"))
        with seen(into) as entering, seen(out) as leaving, seen(norms) as normed:
            what.call(model, (1, 2), what.grid(8, 8))
    assert len(entering) == len(leaving) == len(normed) == len(owners) > 0
    for (image, _), (first, _), (last, _) in zip(normed, entering, leaving, strict=True):
        whole = tokens_in(image)
        assert whole in (64, 16)
        assert tokens_in(first) == tokens_in(last) == (whole // 2 if merged else whole)


def test_blocks_by_themselves_where_each_runs_again_in_the_backward_pass() -> None:
    what = UNETS[0]
    model: Any = made(what.build)
    model.enable_gradient_checkpointing()
    model.train()
    inputs = what.inputs((1,), what.grid(8, 8))
    with tm.merged(model, STACK):
        model(**inputs, return_dict=False)[0].sum().backward()
        assert not any(stack.program.wraps for stack in session_on(model).stacks)
        what.call(model, (1,), what.grid(8, 8))  # without gradients nothing runs again
        assert any(stack.program.wraps for stack in session_on(model).stacks)


@pytest.mark.parametrize("what", UNETS, ids=str)
def test_an_error_on_the_way_leaves_nothing_behind(what: TinyModel) -> None:
    model = made(what.build)
    grid = what.grid(8, 8)
    before = what.call(model, (1, 2), grid)
    hooks = count_hooks(model)
    with tm.merged(model, STACK) as handle:
        expected = what.call(model, (1, 2), grid)
        handle.reset()
        broken = session_on(model).stacks[0].described.merging[0].module.register_forward_hook(_interrupt)
        with pytest.raises(KeyboardInterrupt):
            what.call(model, (1, 2), grid)
        broken.remove()
        handle.reset()
        assert torch.equal(what.call(model, (1, 2), grid), expected)
    assert torch.equal(what.call(model, (1, 2), grid), before)
    assert count_hooks(model) == hooks


def _interrupt(module: nn.Module, args: Any, output: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("scope", ["stack", "site"])
def test_gradients_reach_all_of_the_image(scope: Any) -> None:
    what = UNETS[0]
    model = made(what.build)
    inputs = what.inputs((1,), what.grid(8, 8))
    inputs["sample"].requires_grad_(True)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)):
        model(**inputs, return_dict=False)[0].square().sum().backward()
    assert inputs["sample"].grad is not None
    assert (inputs["sample"].grad != 0).all()


@pytest.mark.parametrize("scope", ["site", "block", "stack"])
@pytest.mark.parametrize("what", UNETS, ids=str)
def test_steps_that_merge_nothing_are_full(what: TinyModel, scope: Any) -> None:
    model = made(what.build)
    grid = what.grid(8, 8)
    before = what.call(model, (1,), grid)
    with tm.merged(model, dataclasses.replace(tm.ToMA.released(), tile=2, scope=scope, **SMALL)):
        merged, whole = (what.call(model, (1,), grid, timestep) for timestep in (0.5, 0.4))
    assert not torch.allclose(merged, before, atol=1e-3)
    assert torch.equal(whole, what.call(model, (1,), grid, 0.4))


@pytest.mark.parametrize("what", UNETS, ids=str)
def test_what_answers_for_a_transformer_is_never_given_merged_tokens(what: TinyModel) -> None:
    """As DeepCache does it: a forward put onto the transformer gives at every second step what it gave before."""
    model = made(what.build)
    grid = what.grid(8, 8)
    shapes = []

    def cache(owner: Any) -> None:
        forward, kept = owner.forward, {}

        def answer(*args: Any, **kwargs: Any) -> Any:
            shapes.append(tuple(args[0].shape[-2:]))
            kept["output"] = kept.pop("output", None) or forward(*args, **kwargs)
            return kept["output"] if len(shapes) % 2 else kept.pop("output")

        owner.forward = answer

    with tm.merged(model, tm.ToMA(ratio=0.5, tile=(2, 2), scope="stack", **SMALL)):
        owner = transformers(model)[0]
        cache(owner)
        for timestep in (1000.0, 990.0, 980.0, 970.0):
            assert what.call(model, (1,), grid, timestep).isfinite().all()
        assert session_on(model).config.scope == "stack"
        assert [stack.program.wraps for stack in session_on(model).stacks[:2]] == [False, True]
    assert set(shapes) == {shapes[0]}
    assert shapes[0][0] == shapes[0][1]


def test_a_norm_that_is_left_out_is_no_silent_fault() -> None:
    what = UNETS[0]
    model = made(what.build)
    with tm.merged(model, STACK):
        what.call(model, (1,), what.grid(8, 8))
        owner = transformers(model)[0]
        owner._operate_on_continuous_inputs = lambda hidden: (hidden.flatten(2).transpose(1, 2), hidden.shape[1])
        with pytest.raises(MergeRuntimeError, match="something answers in its place"):
            what.call(model, (1,), what.grid(8, 8))


@pytest.mark.parametrize("what", UNETS, ids=str)
def test_a_norm_that_is_replaced_is_followed(what: TinyModel) -> None:
    model = made(what.build)
    grid = what.grid(8, 8)
    with tm.merged(model, STACK) as handle:
        before = what.call(model, (1,), grid)
        for owner in transformers(model):
            owner.norm = copy.deepcopy(owner.norm)
            owner.norm._forward_hooks.clear()
            owner.norm._forward_pre_hooks.clear()
        handle.reset()
        assert torch.equal(what.call(model, (1,), grid), before)


@pytest.mark.parametrize("what", UNETS, ids=str)
def test_hooks_of_others_see_an_image(what: TinyModel) -> None:
    model = made(what.build)
    stacks = family_of(model).stacks(model)
    with seen([stacks[0].owner]) as before, tm.merged(model, STACK), seen([stacks[0].owner]) as after:
        what.call(model, (1,), what.grid(8, 8))
    assert before[0][1].shape == after[0][1].shape
    assert before[0][1].shape[-1] == before[0][1].shape[-2] > 1


@pytest.mark.parametrize("full", [True, False])
@torch.no_grad()
def test_an_output_of_diffusers_own_kind_is_understood(full: bool) -> None:
    what = UNETS[0]
    model = made(what.build)
    grid = what.grid(8, 8)
    with tm.merged(model, dataclasses.replace(STACK, correction=tm.FullSteps(every=2) if full else None)):
        for timestep in (1000.0,):
            with seen(transformers(model)[:1]) as calls:
                what.call(model, (1,), grid, timestep)
        owner = transformers(model)[0]
        image = torch.randn(1, calls[0][1].shape[1], 8, 8)
        text = what.inputs((1,), grid)["encoder_hidden_states"]
        named = owner(image, encoder_hidden_states=text).sample
        [plain] = owner(image, encoder_hidden_states=text, return_dict=False)
    assert named.shape == image.shape
    assert torch.equal(named, plain)
