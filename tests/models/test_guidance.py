"""Tokens weighed by how much guidance changes the prediction."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import SMALL, root_of
from tiny_models import TinyModel, made, per_sample, tiny
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.engine.guidance import GuidanceWatch
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.methods.interfaces import Place

WEIGHED = tm.ToMA(ratio=0.5, region="global", share="model", importance="guidance", detail_every=0, **SMALL)


def test_two_halves_of_a_batch() -> None:
    watch = GuidanceWatch()
    noise = torch.randn(2, 4, 4, 4)
    watch.begin_call(0, 0, torch.cat([noise, noise]))
    assert watch.weights((4, 4)) is None
    difference = torch.rand(2, 1, 4, 4) + 0.5
    watch.end_call((torch.cat([noise, noise + difference]),))
    watch.begin_call(1, 0, torch.cat([noise, noise]))
    weights = watch.weights((4, 4))
    assert weights is not None
    expected = difference.flatten(1) / difference.flatten(1).mean(dim=1, keepdim=True)
    torch.testing.assert_close(weights, torch.cat([expected, expected]))
    coarse = watch.weights((2, 2))
    assert coarse is not None
    torch.testing.assert_close(coarse[:2], expected.view(2, 2, 2, 2, 2).mean(dim=(2, 4)).flatten(1))


def test_two_calls_of_a_step_with_tokens_of_a_reference_behind() -> None:
    watch = GuidanceWatch()
    noise = torch.randn(1, 6, 3)
    watch.begin_call(0, 0, noise)
    watch.end_call((torch.zeros(1, 6, 3),))
    watch.begin_call(0, 1, noise)
    watch.end_call((torch.tensor([1.0, 1, 1, 3, 9, 9]).view(1, 6, 1).expand(1, 6, 3),))
    watch.begin_call(1, 0, noise)
    weights = watch.weights((2, 2), trailing=2)
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([[1.0, 1, 1, 3]]) / 1.5)


def test_no_token_counts_for_nothing_and_none_for_everything() -> None:
    watch = GuidanceWatch()
    watch.magnitude = torch.tensor([[0.0] * 99 + [1.0]])
    weights = watch.weights((10, 10))
    assert weights is not None
    assert (weights.min(), weights.max()) == (1 / 8, 8)


# One tensor for all steps, as pipelines have it: another would be another picture's.
WITH_AND_WITHOUT = per_sample([1, 2], 5, 12, salt=1) * 3


def guided(model: nn.Module, timestep: float) -> Tensor:
    """One call with both predictions, as Stable Diffusion pipelines make it."""
    inputs = tiny("sd15").inputs([1, 1], (8, 8))
    inputs["encoder_hidden_states"] = WITH_AND_WITHOUT
    with torch.no_grad():
        output: Tensor = model(**{**inputs, "timestep": torch.tensor(timestep)}, return_dict=False)[0]
    return output


def test_destinations_are_chosen_by_the_step_before() -> None:
    unet = tiny("sd15")
    model = made(unet.build)
    tm.apply(model, WEIGHED)
    root = root_of(model)
    prediction = guided(model, 0.9)
    seen: list[Tensor] = []
    block = root.stacks[0].blocks[0]
    handle = block.block.module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    guided(model, 0.8)
    handle.remove()
    size = (prediction[0] - prediction[1]).abs().mean(dim=0).flatten()
    weights = (size / size.mean()).clamp(1 / 8, 8).expand(2, -1)
    stack_weights = root.stacks[0].importance
    assert stack_weights is not None
    torch.testing.assert_close(stack_weights, weights)
    assert block.layout is not None
    expected = WEIGHED.plan(seen[0], block.layout, Place("", 0, 1, importance=weights), None).picks
    plain = WEIGHED.plan(seen[0], block.layout, Place("", 0, 1), None).picks
    assert block.operators.picks is not None
    assert torch.equal(block.operators.picks, expected)
    assert not torch.equal(expected, plain)
    assert root.selections == 2 * len({id(block.group) for stack in root.stacks for block in stack.blocks})


@pytest.mark.parametrize("what", [tiny("flux"), tiny("wan")], ids=str)
def test_guidance_by_two_calls(what: TinyModel) -> None:
    model, grid = made(what.build), what.grid(8, 8)
    tm.apply(model, dataclasses.replace(WEIGHED, region="tile"))
    inputs = what.inputs([1], grid)
    texts = [per_sample([seed], 5, 12, salt=1) for seed in (1, 2)]
    for timestep in (0.9, 0.8):
        for text in texts:
            given = {**inputs, "encoder_hidden_states": text}
            given["timestep"] = torch.full_like(inputs["timestep"], timestep)
            with torch.no_grad():
                model(**given, return_dict=False)
    weights = root_of(model).stacks[0].importance
    assert weights is not None
    assert weights.shape == (1, torch.Size(grid).numel())
    assert weights.std() > 0


def test_a_pipeline_without_guidance_is_told_so() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    tm.apply(model, WEIGHED)
    pixart.call(model, [1, 2], (8, 8), 0.9)
    with pytest.raises(MergeRuntimeError, match=r"no classifier-free guidance.*leave importance out"):
        pixart.call(model, [1, 2], (8, 8), 0.8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"importance": "faces"}, "'faces'.*use 'guidance'"),
        ({"importance": "guidance", "selector": "grid"}, "no token"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tm.ToMA(**options)


def test_explaining_needs_no_guidance() -> None:
    model = made(tiny("pixart").build)
    with tm.merged(model, WEIGHED) as handle:
        assert handle.explain(size=(128, 128)).models[0].multiply_adds.saving > 0


def test_tokens_of_a_condition_stand_in_front() -> None:
    watch = GuidanceWatch()
    watch.magnitude = torch.tensor([[9.0, 9, 1, 1, 1, 3, 7]])
    weights = watch.weights((2, 2), trailing=1)
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([[1.0, 1, 1, 3]]) / 1.5)


def test_removing_lets_go_of_what_was_seen() -> None:
    model = made(tiny("sd15").build)
    handle = tm.apply(model, WEIGHED)
    root = root_of(model)
    for timestep in (0.9, 0.8):
        guided(model, timestep)
    handle.remove()
    assert root.guidance is None
    assert [stack.importance for stack in root.stacks] == [None] * len(root.stacks)
