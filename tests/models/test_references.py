"""Images to edit are merged harder than the image that is made of them, and a mask goes over that one alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, TILES, close, count_hooks, key_lengths, operators_on
from identity import Identity
from tiny_models import made, tiny
from tiny_models.joint_attention import flux2_inputs, flux_inputs, qwen_inputs
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.models.position_ids import image_ids, reference_grids

GRID, REFERENCE = (8, 8), (6, 4)
EDITORS: dict[str, Any] = {"flux": flux_inputs, "flux2": flux2_inputs, "qwen-image": qwen_inputs}
every_editor = pytest.mark.parametrize("name", EDITORS)
every_scope = pytest.mark.parametrize("scope", SCOPES)


def call(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs, return_dict=False)[0]
    return output


@every_editor
@every_scope
@pytest.mark.parametrize(("ratio", "kept"), [(0.5, 12), (0.75, 6), (0.9375, 2)])
def test_references_run_on_fewer_tokens(name: str, scope: Any, ratio: float, kept: int) -> None:
    model, inputs = made(tiny(name).build), EDITORS[name]([1, 2], GRID, references=REFERENCE)
    before, hooks = call(model, inputs), count_hooks(model)
    config = dataclasses.replace(TILES, scope=scope)
    with tm.merged(model, config, reference_ratio=ratio) as handle:
        with key_lengths() as keys:
            after = call(model, inputs)
        (stack,) = handle.explain().models[0].stacks
    assert keys[0] == 32 + kept + tiny(name).text
    assert set(keys) == {keys[0]}
    assert after.shape == before.shape
    assert after.isfinite().all()
    assert f"references: {kept} of 24 tokens kept" in stack.note
    assert (stack.tokens, stack.kept) == (64 + 24, 32 + kept)
    assert torch.equal(call(model, inputs), before)
    assert count_hooks(model) == hooks


@every_scope
def test_references_of_equal_tokens_lose_nothing(scope: Any) -> None:
    """All of them are the same at the same place: with weights, one stands for two exactly."""
    model, inputs = made(tiny("flux").build), flux_inputs([1, 2], GRID, references=(1, 24))
    ids = image_ids(*GRID, 3)
    inputs["img_ids"] = torch.cat([ids, torch.tensor([[1.0, 3.0, 2.0]]).expand(24, -1)])
    inputs["hidden_states"][:, 64:] = inputs["hidden_states"][:, 64:65]
    before = call(model, inputs)
    config = Identity(scope=scope, skip_blocks=0, proportional=True)
    with tm.merged(model, config, reference_ratio=0.5), key_lengths() as keys:
        after = call(model, inputs)
    assert set(keys) == {64 + 12 + 5}
    close(after[:, :64], before[:, :64])


def test_a_method_that_only_skips_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="SkipSteps merges no tokens: use TileMean"):
        tm.apply(made(tiny("flux").build), tm.SkipSteps(), reference_ratio=0.5)


@pytest.mark.parametrize(
    "config",
    [
        tm.TileMean(tile=2, **SMALL),
        tm.TileMean(tile=2, keys="all", correction=None, **SMALL),
        tm.ToMA(keys="sampled", tile=2, **SMALL),
        tm.SampledKeys(**SMALL),
        tm.ToMeSD(max_downsample=4, **SMALL),
    ],
    ids=lambda config: f"{type(config).__name__}-{config.keys}",
)
def test_every_kind_of_method_takes_them_along(config: tm.MergeConfig) -> None:
    model, inputs = made(tiny("flux").build), flux_inputs([1], GRID, references=REFERENCE)
    with tm.merged(model, config, reference_ratio=0.75):
        for timestep in (1.0, 0.9, 0.8, 0.7):
            with key_lengths() as keys:
                output = call(model, {**inputs, "timestep": torch.tensor([timestep])})
            assert output.isfinite().all()
    if config.keys == "all":
        assert set(keys) == {64 + 24 + 5}
    else:
        assert set(keys) == {(32 if config.ratio == 0.5 else 16) + 6 + 5}


def test_a_mask_keeps_tokens_of_the_image_alone() -> None:
    model, inputs = made(tiny("flux").build), flux_inputs([1], GRID, references=(8, 8))
    white = torch.zeros(16, 16)
    white[:8] = 1
    config = tm.TileMean(tile=2, correction=None, **SMALL)
    with tm.merged(model, config, keep=white, reference_ratio=0.75):
        call(model, inputs)
        operator = operators_on(model).queries
    assert operator is not None
    assert operator.destinations is not None
    kept = operator.destinations[0].tolist()
    assert set(range(32)) < set(kept)  # the upper half of the image, each token by itself
    assert len([place for place in kept if 32 <= place < 64]) == 8
    assert len([place for place in kept if place >= 64]) == 16
    tokens = torch.randn(1, 128, 4)
    merged = operator.merge(tokens)
    for place in range(32):
        assert torch.equal(merged[0, kept.index(place)], tokens[0, place])


def test_a_call_without_references_is_merged_as_ever() -> None:
    model, inputs = made(tiny("flux").build), flux_inputs([1], GRID)
    with tm.merged(model, TILES):
        expected = call(model, inputs)
    with tm.merged(model, TILES, reference_ratio=0.75):
        assert torch.equal(call(model, inputs), expected)


@pytest.mark.parametrize("ratio", [0.6, 1, -0.5, True, "half", None])
def test_other_ratios_are_refused(ratio: Any) -> None:
    with pytest.raises(ConfigError, match=r"reference_ratio is .*one of 0, 0\.5, 0\.75, 0\.875"):
        tm.apply(made(tiny("flux").build), TILES, reference_ratio=ratio)


def test_a_model_that_edits_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="is given no images to edit"):
        tm.apply(made(tiny("sd15").build), TILES, reference_ratio=0.5)


def test_a_reference_too_small_is_said() -> None:
    model, inputs = made(tiny("flux").build), flux_inputs([1], GRID, references=(1, 1))
    with tm.merged(model, TILES, reference_ratio=0.5), pytest.raises(MergeRuntimeError, match="1 x 1 tokens"):
        call(model, inputs)


def test_grids_of_several_references_are_read_from_ids() -> None:
    image, first = image_ids(4, 4, 3), image_ids(2, 3, 3)
    one, two = torch.tensor([1.0, 0, 0]), torch.tensor([2.0, 0, 0])
    beside = torch.tensor([1.0, 0, 3])  # as Kontext places a second one: to the right of the first
    assert reference_grids(torch.cat([image, first + one, image + two])) == ((2, 3), (4, 4))
    assert reference_grids(torch.cat([image, first + one, first + beside])) == ((2, 3), (2, 3))
    assert reference_grids(image) == ()
    with pytest.raises(MergeRuntimeError, match="not a grid"):
        reference_grids(torch.cat([image, (first + one)[:5]]))
