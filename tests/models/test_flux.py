"""What is special about Flux.1: references, text of any length, ControlNets, LoRA on the projections it hooks into."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, TILES, close, count_hooks, key_lengths, part_lengths, session_on
from identity import Identity
from peft import LoraConfig, inject_adapter_in_model
from tiny_models import made, per_sample, tiny
from tiny_models.joint_attention import flux, flux_inputs
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.position_ids import grid_of_ids, image_ids

FLUX = tiny("flux")
GRID = (8, 8)
every_scope = pytest.mark.parametrize("scope", SCOPES)


def call(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs, return_dict=False)[0]
    return output


def identity_holds(model: nn.Module, inputs: dict[str, Any], scope: Any) -> None:
    before = call(model, inputs)
    with tm.merged(model, Identity(scope=scope, skip_blocks=0)):
        close(call(model, inputs), before)


@every_scope
def test_schnell_has_no_guidance(scope: Any) -> None:
    identity_holds(made(partial(flux, guidance=False)), flux_inputs([1, 2], GRID, guidance=False), scope)


@every_scope
def test_fill_has_more_channels_in_than_out(scope: Any) -> None:
    model = made(partial(flux, channels=48, out_channels=8))
    inputs = flux_inputs([1, 2], GRID, channels=48)
    identity_holds(model, inputs, scope)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)):
        assert call(model, inputs).shape == (2, 64, 8)


@every_scope
@pytest.mark.parametrize("references", [(6, 4), (8, 8)])
def test_references_of_kontext_are_kept_whole(scope: Any, references: tuple[int, int]) -> None:
    model = made(flux)
    inputs = flux_inputs([1, 2], GRID, references=references)
    identity_holds(model, inputs, scope)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)), key_lengths() as keys:
        assert call(model, inputs).shape == inputs["hidden_states"].shape
    assert set(keys) == {32 + references[0] * references[1] + 5}


@every_scope
def test_guidance_calls_may_have_text_of_other_lengths(scope: Any) -> None:
    model = made(flux)
    tm.apply(model, dataclasses.replace(TILES, scope=scope))
    root = session_on(model)
    for step, timestep in enumerate((3.0, 2.0, 1.0)):
        for text in (7, 3):  # the prompt, then the negative prompt
            with key_lengths() as keys:
                call(model, {**flux_inputs([1], GRID, text=text), "timestep": torch.tensor([timestep])})
            assert set(keys) == {32 + text}
        assert root.steps.schedule.number == step
    assert root.selections == 2  # each guidance branch has its own plan


@every_scope
def test_controlnet_residuals_are_added_to_whole_images(scope: Any) -> None:
    model = made(flux)
    inputs = flux_inputs([1, 2], GRID)
    inputs["controlnet_block_samples"] = [per_sample([1, 2], 64, 24, salt=salt) for salt in (3, 4)]
    inputs["controlnet_single_block_samples"] = [per_sample([1, 2], 64, 24, salt=5)]
    identity_holds(model, inputs, scope)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)), key_lengths() as keys:
        with_control = call(model, inputs)
        without = call(model, flux_inputs([1, 2], GRID))
    assert set(keys) == {32 + 5}
    assert not torch.allclose(with_control, without)


@every_scope
@pytest.mark.parametrize("first", ["lora", "merging"])
def test_lora_on_the_projection_where_tokens_leave(scope: Any, first: str) -> None:
    inputs = flux_inputs([1, 2], GRID)
    adapter = LoraConfig(r=2, target_modules=["proj_out", "to_q"], init_lora_weights=False)
    torch.manual_seed(0)
    reference = inject_adapter_in_model(adapter, made(flux))
    expected = call(reference, inputs)
    model = made(flux)
    config = Identity(scope=scope, skip_blocks=0)
    if first == "merging":
        tm.apply(model, config)
        call(model, inputs)
    inject_adapter_in_model(adapter, model)
    model.load_state_dict(reference.state_dict())
    if first == "lora":
        tm.apply(model, config)
    close(call(model, inputs), expected)
    tm.remove(model)
    assert torch.equal(call(model, inputs), expected)
    assert count_hooks(model) == count_hooks(reference)


@every_scope
def test_ip_adapter_images(scope: Any) -> None:
    from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor

    def with_adapter() -> nn.Module:
        model = flux()
        for block in model.transformer_blocks:
            block.attn.set_processor(FluxIPAdapterAttnProcessor(hidden_size=24, cross_attention_dim=6))
        return model

    model = made(with_adapter)
    inputs = flux_inputs([1, 2], GRID)
    inputs["joint_attention_kwargs"] = {"ip_hidden_states": [per_sample([1, 2], 4, 6, salt=3)]}
    identity_holds(model, inputs, scope)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)):
        assert call(model, inputs).isfinite().all()


@every_scope
def test_gradient_checkpointing_passes_arguments_by_position(scope: Any) -> None:
    model = made(flux)
    inputs = flux_inputs([1, 2], GRID)
    expected = call(model, inputs)
    model.enable_gradient_checkpointing()
    model.train()
    tm.apply(model, Identity(scope=scope, skip_blocks=0))
    output = model(**inputs, return_dict=False)[0]
    close(output, expected)
    output.square().mean().backward()
    assert all(weight.grad is not None for weight in model.single_transformer_blocks[-1].attn.to_q.parameters())


@pytest.mark.parametrize(
    ("parts", "attention", "single"),
    [(("self",), 37, {32, 37}), (("mlp",), 69, {32, 37}), (("self", "mlp"), 37, {32, 37})],
)
def test_parts_of_single_blocks(parts: tuple[str, ...], attention: int, single: set[int]) -> None:
    model = made(flux)
    inputs = flux_inputs([1, 2], GRID)
    expected = call(model, inputs)
    with tm.merged(model, Identity(parts=parts, skip_blocks=0)):
        close(call(model, inputs), expected)
    with tm.merged(model, dataclasses.replace(TILES, parts=parts)), key_lengths() as keys:
        call(model, inputs)
        assert part_lengths(model) == single
    assert set(keys) == {attention}


def test_the_first_blocks_are_skipped_in_proportion() -> None:
    from tokenmerge.models.flux import FluxFamily

    family = FluxFamily()
    assert [family.default_skip(blocks) for blocks in (57, 6, 3, 2)] == [10, 1, 1, 0]
    model = made(flux)
    tm.apply(model, tm.ToMA(ratio=0.75, tile=(2, 2), min_tokens=16))
    assert [block.name for block in session_on(model).stacks[0].described.merging][:2] == [
        "transformer_blocks.1",
        "single_transformer_blocks.0",
    ]


def test_ids_are_read_once_and_again_when_they_change() -> None:
    ids = image_ids(3, 5, 3)
    assert grid_of_ids(ids) == (3, 5)
    ids.copy_(image_ids(5, 3, 3))
    assert grid_of_ids(ids) == (5, 3)
    assert grid_of_ids(image_ids(1, 4, 4)[None]) == (1, 4)


def test_ids_that_are_no_grid_are_an_error() -> None:
    with pytest.raises(MergeRuntimeError, match="not a grid"):
        grid_of_ids(image_ids(3, 5, 3)[:-1])
    with pytest.raises(MergeRuntimeError, match="CPU"):
        grid_of_ids(image_ids(3, 5, 3).to("meta"))


def test_a_lower_ratio_merges_less() -> None:
    model = made(flux)
    before = FLUX.call(model, [1], GRID)
    apart = []
    for ratio in (0.25, 0.5, 0.75):
        with tm.merged(model, tm.ToMA(ratio=ratio, tile=(4, 4), **SMALL)):
            apart.append((FLUX.call(model, [1], GRID) - before).square().mean())
    assert apart[0] < apart[1] < apart[2]
