"""What is special about single families, beyond the contract."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, TILES, close, key_lengths, session_on, since
from identity import Identity
from tiny_models import made, per_sample
from tiny_models.cross_attention import sana
from tiny_models.joint_attention import flux2, flux2_inputs, qwen_image, qwen_inputs, sd3, sd3_inputs
from tiny_models.more_joint_attention import flux3, flux3_inputs, hidream, hidream_inputs
from tiny_models.unets import sd15_unet, unet_inputs
from tiny_models.video import hunyuan_inputs, hunyuan_video, ltx, ltx_inputs, wan, wan_inputs
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.errors import ConfigError, MergeRuntimeError

IMAGE, VIDEO = (8, 8), (2, 8, 8)
every_scope = pytest.mark.parametrize("scope", SCOPES)


def call(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs, return_dict=False)[0]
    return output


def identity_holds(model: nn.Module, inputs: dict[str, Any], scope: Any) -> None:
    before = call(model, inputs)
    with tm.merged(model, Identity(scope=scope, skip_blocks=0)):
        close(call(model, inputs), before)


def merged_keys(model: nn.Module, inputs: dict[str, Any], scope: Any) -> set[int]:
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)), key_lengths() as keys:
        assert call(model, inputs).isfinite().all()
    return set(keys)


@every_scope
@pytest.mark.parametrize("skipped", [[0], [1], [2], [0, 2]])
def test_sd3_with_layers_left_out(scope: Any, skipped: list[int]) -> None:
    model = made(sd3)
    inputs = {**sd3_inputs([1, 2], IMAGE), "skip_layers": skipped}
    identity_holds(model, inputs, scope)
    # Skip-layer guidance calls the whole model first.
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)):
        for _ in range(2):
            assert call(model, sd3_inputs([1, 2], IMAGE)).isfinite().all()
            assert call(model, inputs).isfinite().all()


@every_scope
def test_sd3_with_a_controlnet(scope: Any) -> None:
    inputs = sd3_inputs([1, 2], IMAGE)
    inputs["block_controlnet_hidden_states"] = [per_sample([1, 2], 64, 8, salt=salt) for salt in (3, 4)]
    identity_holds(made(sd3), inputs, scope)
    assert merged_keys(made(sd3), inputs, scope) == {32, 32 + 5}  # the second attention has no text


@since("0.36", "Flux.2")
@every_scope
def test_flux2_keeps_references_whole(scope: Any) -> None:
    inputs = flux2_inputs([1, 2], IMAGE, references=(4, 6))
    identity_holds(made(flux2), inputs, scope)
    assert merged_keys(made(flux2), inputs, scope) == {32 + 24 + 5}


@since("0.38", "Flux.2's cache of references")
def test_flux2_with_a_cache_of_references_is_refused() -> None:
    model = made(flux2)
    tm.apply(model, TILES)
    with pytest.raises(MergeRuntimeError, match="kv_cache_mode"):
        call(model, {**flux2_inputs([1], IMAGE), "kv_cache_mode": "extract"})


@since("0.42", "Flux.3")
@every_scope
def test_flux3_keeps_references_whole(scope: Any) -> None:
    inputs = flux3_inputs([1, 2], IMAGE, references=(4, 6))
    identity_holds(made(flux3), inputs, scope)
    assert merged_keys(made(flux3), inputs, scope) == {32, 5, 24, 32 + 24 + 5}  # each mode alone, then all of them


@since("0.42", "HiDream in this form")
def test_hidream_refuses_images_that_it_pads() -> None:
    model = made(hidream)
    tm.apply(model, TILES)
    with pytest.raises(MergeRuntimeError, match="square"):
        call(model, hidream_inputs([1], (8, 12)))


@every_scope
def test_qwen_keeps_images_to_edit_whole(scope: Any) -> None:
    inputs = qwen_inputs([1, 2], IMAGE, references=(4, 6))
    identity_holds(made(qwen_image), inputs, scope)
    assert merged_keys(made(qwen_image), inputs, scope) == {32 + 24 + 5}


@since("0.36", "Qwen-Image's ControlNet")
@every_scope
def test_qwen_with_a_controlnet(scope: Any) -> None:
    inputs = qwen_inputs([1, 2], IMAGE)
    inputs["controlnet_block_samples"] = [per_sample([1, 2], 64, 24, salt=3)]
    identity_holds(made(qwen_image), inputs, scope)


@since("0.37", "Qwen-Image's separate time for references")
def test_qwen_with_two_times_can_merge_parts_only() -> None:
    model = made(partial(qwen_image, zero_cond_t=True))
    inputs = qwen_inputs([1, 2], IMAGE, references=(4, 6))
    identity_holds(model, inputs, "site")
    assert merged_keys(model, inputs, "site") == {32 + 24 + 5}
    with pytest.raises(ConfigError, match=r"by their place.*scope='site'"):
        tm.apply(model, dataclasses.replace(TILES, scope="block"))


def test_sana_can_merge_cross_attention_only() -> None:
    with pytest.raises(ConfigError, match=r"convolutions.*scope='site'"):
        tm.apply(made(sana), tm.ToMA(scope="stack"))
    with pytest.raises(tm.TokenMergeError, match="parts"):
        tm.apply(made(sana), tm.ToMA(parts=("self",)))


def per_token(inputs: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The first frame is given: its tokens are at time 0."""
    times = torch.full((2, tokens), 0.5)
    times[:, : tokens // 2] = 0
    return {**inputs, "timestep": times}


@pytest.mark.parametrize(("build", "inputs"), [(wan, wan_inputs), (ltx, ltx_inputs)], ids=["wan", "ltx"])
def test_a_timestep_for_each_token_allows_parts_only(build: Any, inputs: Any) -> None:
    model = made(build)
    given = per_token(inputs([1, 2], VIDEO), 128)
    identity_holds(model, given, "site")
    assert max(merged_keys(model, given, "site")) == 64
    tm.apply(model, dataclasses.replace(TILES, scope="block"))
    with pytest.raises(MergeRuntimeError, match="scope='site'"):
        call(model, given)
    # The same model without such timesteps can be merged in blocks.
    assert call(model, inputs([1, 2], VIDEO)).isfinite().all()


def test_the_step_is_that_of_the_tokens_being_made() -> None:
    model = made(wan)
    tm.apply(model, TILES)
    for step in range(6):
        given = per_token(wan_inputs([1, 2], VIDEO), 128)
        call(model, {**given, "timestep": given["timestep"] * (10 - step)})
        assert session_on(model).steps.schedule.number == step


@every_scope
def test_ltx_keeps_tokens_of_conditions_in_front(scope: Any) -> None:
    inputs = ltx_inputs([1, 2], VIDEO)
    inputs["hidden_states"] = per_sample([1, 2], 6 + 128, 8)
    inputs["video_coords"] = torch.rand(2, 3, 6 + 128, generator=torch.Generator().manual_seed(0)) * 20
    identity_holds(made(ltx), inputs, scope)
    assert max(merged_keys(made(ltx), inputs, scope)) == 6 + 64


def test_hunyuan_that_replaces_its_first_frame_can_merge_parts_only() -> None:
    model = made(partial(hunyuan_video, image_condition_type="token_replace"))
    inputs = hunyuan_inputs([1, 2], VIDEO)
    identity_holds(model, inputs, "site")
    assert max(merged_keys(model, inputs, "site")) == 64 + 5
    with pytest.raises(ConfigError, match=r"first frame.*scope='site'"):
        tm.apply(model, dataclasses.replace(TILES, scope="stack"))


@every_scope
def test_padding_of_text_stays_hidden_from_merged_images(scope: Any) -> None:
    """What stands in a padded place must not matter, merged or not."""
    model = made(hunyuan_video)
    inputs = hunyuan_inputs([1, 2], VIDEO)
    other = {**inputs, "encoder_hidden_states": inputs["encoder_hidden_states"].clone()}
    other["encoder_hidden_states"][:, -1] += 3
    tm.apply(model, dataclasses.replace(TILES, scope=scope))
    close(call(model, inputs), call(model, {**other, "timestep": inputs["timestep"] - 0.1 + 0.1}))


def test_a_mask_over_image_tokens_is_refused() -> None:
    model = made(sd15_unet)
    tm.apply(model, TILES)
    with pytest.raises(MergeRuntimeError, match="attention mask"):
        call(model, {**unet_inputs([1], IMAGE), "attention_mask": torch.ones(1, 64)})


@pytest.mark.parametrize(
    ("build", "inputs", "grid"),
    [(sd15_unet, unet_inputs, (8, 8)), (wan, wan_inputs, VIDEO), (hunyuan_video, hunyuan_inputs, VIDEO)],
    ids=["unet", "wan", "hunyuan"],
)
@every_scope
def test_gradient_checkpointing(build: Any, inputs: Any, grid: Any, scope: Any) -> None:
    model = made(build)
    expected = call(model, inputs([1, 2], grid))
    model.enable_gradient_checkpointing()
    model.train()
    tm.apply(model, Identity(scope=scope, skip_blocks=0))
    output = model(**inputs([1, 2], grid), return_dict=False)[0]
    close(output, expected)
    output.square().mean().backward()
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad and weight.dim() > 1)


def test_video_tiles_may_span_frames() -> None:
    model = made(wan)
    before = call(model, wan_inputs([1, 2], VIDEO))
    with tm.merged(model, dataclasses.replace(TILES, tile=(2, 2, 2), ratio=0.75)), key_lengths() as keys:
        after = call(model, wan_inputs([1, 2], VIDEO))
    assert after.shape == before.shape
    assert max(keys) == 32


@pytest.mark.parametrize("scope", ["site", "block"])
def test_perturbed_attention_guidance_is_followed_or_refused(scope: Any) -> None:
    from diffusers.models.attention_processor import PAGCFGIdentitySelfAttnProcessor2_0

    model = made(sd15_unet)
    model.mid_block.attentions[0].transformer_blocks[0].attn1.set_processor(PAGCFGIdentitySelfAttnProcessor2_0())
    inputs = unet_inputs([1, 1, 1], (16, 16))
    plain = dataclasses.replace(TILES, scope=scope, proportional=False)
    with tm.merged(model, plain), torch.no_grad():
        assert model(**inputs, return_dict=False)[0].isfinite().all()
    separate_keys = [tm.ToDo(ratio=0.75, coarser_ratios=(0.75,), min_tokens=16)] if scope == "site" else []
    for config in (dataclasses.replace(plain, proportional=True), *separate_keys):
        with tm.merged(model, config), pytest.raises(MergeRuntimeError, match=r"mid_block.*PAG.*skip_blocks"):
            model(**inputs)


@pytest.mark.parametrize(
    "config",
    [
        TILES,
        dataclasses.replace(TILES, scope="stack", correction=tm.FullSteps(every=2, within=None)),
        tm.ToMeSD(**SMALL),
        tm.ToDo(ratio=0.75, **SMALL),
    ],
    ids=["ToMA", "corrected", "ToMeSD", "ToDo"],
)
def test_training_after_inference_mode(config: Any) -> None:
    """Tensors made in inference mode cannot be used in training, so neither plans nor cached orders may be kept."""
    model, inputs = made(sd15_unet), unet_inputs([1], IMAGE)
    tm.apply(model, config)
    with torch.inference_mode():
        for timestep in (900, 800):
            call(model, {**inputs, "timestep": torch.tensor([float(timestep)])})
    for timestep in (700, 600):
        output = model(**{**inputs, "timestep": torch.tensor([float(timestep)])}, return_dict=False)[0]
        output.square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
