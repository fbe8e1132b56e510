"""explain(): counted savings against arithmetic done by hand, and what a run measured."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import TINY_MODELS, TinyModel, tiny
from torch import nn

import tokenmerge as tm
from tokenmerge.models import family_of


@pytest.fixture
def unet() -> TinyModel:
    return next(model for model in TINY_MODELS if model.name == "sd15")


def attention_macs(attention: nn.Module, queries: int, keys: int) -> int:
    """Multiply-adds of one attention for one sample, from the shapes of its layers."""
    projected = attention.to_q.out_features
    macs = queries * attention.to_q.in_features * projected
    macs += keys * (attention.to_k.in_features + attention.to_v.in_features) * projected
    macs += 2 * queries * keys * projected
    return macs + queries * projected * attention.to_out[0].out_features


def test_saving_equals_arithmetic_by_hand(unet: TinyModel) -> None:
    """Self-attention only: what is saved is each attention at N tokens less the same at N / 2, less the products."""
    model = unet.build()
    inputs = unet.inputs([0], (16, 16))
    every = {"select_every": 10}
    config = tm.ToMA(ratio=0.5, parts=("self",), min_tokens=0, tile=(4, 4), **every)
    with tm.merged(model, config) as handle, torch.no_grad():
        model(**inputs)
        work = handle.explain().models[0].multiply_adds
        saved = 0
        for stack in handle._sessions[0].stacks:
            layout = stack.program.layout
            assert layout is not None
            tokens, kept = layout.tokens, layout.kept
            assert kept * 2 == tokens
            for block in stack.described.merging:
                attention = block.module.attn1
                products = 2 * tokens * 8 * attention.to_q.in_features  # merge and unmerge: 8 kept of a tile's 16
                saved += attention_macs(attention, tokens, tokens) - attention_macs(attention, kept, kept) - products
    assert work.unmerged - work.steady == saved
    assert work.steady < work.weights < work.select
    assert work.average == pytest.approx((work.select + 9 * work.steady) / 10)


def test_measured_counts_are_those_of_the_run(unet: TinyModel) -> None:
    model = unet.build()
    every = {"select_every": (4, 2)}
    config = tm.ToMA(ratio=0.5, min_tokens=0, tile=(2, 2), **every)
    with tm.merged(model, config) as handle, torch.no_grad():
        assert handle.explain(size=(128, 128)).models[0].measured is None
        for step in range(8):
            model(**{**unet.inputs([0], (16, 16)), "timestep": 900 - step})
        report = handle.explain().models[0]
        levels = {stack.level for stack in family_of(model).stacks(model)}  # which share a plan
    assert report.measured is not None
    assert report.measured.calls == 8
    assert report.measured.full == 0
    assert report.measured.selections == 2 * len(levels)
    assert report.measured.weightings == 4 * len(levels)
    seen = report.measured.tokens_seen
    for stack in report.stacks:
        for block in stack.blocks:
            assert seen[f"{block}.attn1"] == seen[f"{block}.ff"] == stack.kept == stack.tokens // 2


def test_what_is_left_alone_says_why(unet: TinyModel) -> None:
    model = unet.build()
    with tm.merged(model, tm.ToMA(ratio=0.5, min_tokens=256, tile=(2, 2), skip_blocks=("up_blocks.*",))) as handle:
        explanation = handle.explain(size=(128, 128))
    notes = {stack.name: stack.note for stack in explanation.models[0].stacks}
    assert any("fewer than min_tokens=256" in note for note in notes.values())
    assert all(note == "all blocks skipped" for name, note in notes.items() if name.startswith("up_blocks"))
    assert "fewer than min_tokens=256" in " ".join(str(explanation).split())


def test_it_is_plain_json_and_a_table(unet: TinyModel) -> None:
    model = unet.build()
    with tm.merged(model, tm.ToMA(ratio=0.5, min_tokens=0, tile=(2, 2), selector=pick_first)) as handle:
        explanation = handle.explain(size=(128, 128), batch=2)
    plain = json.loads(json.dumps(explanation.to_dict()))
    assert plain["config"]["selector"] == "pick_first"
    assert 0 < plain["models"][0]["multiply_adds"]["saving"] < 1
    assert "256 -> 128" in str(explanation)


def test_skipped_steps_alone_are_not_described_as_merging(unet: TinyModel) -> None:
    with tm.merged(unet.build(), tm.SkipSteps()) as handle:
        text = " ".join(str(handle.explain(size=(128, 128), steps=1)).split())
    assert "no token is merged" in text
    assert "at a computed step): 0.0% saved" in text
    assert "over 1 step (" in text
    assert "ratio 0" not in text
    assert "selecting" not in text


def test_explaining_leaves_the_model_alone(unet: TinyModel) -> None:
    model = unet.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with tm.merged(model, tm.ToMA(ratio=0.5, min_tokens=0, tile=(2, 2))) as handle:
        handle.explain(size=(128, 128))
        assert handle._sessions[0].calls == 0
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_stack_that_must_be_merged_per_block_says_so() -> None:
    flux = next(model for model in TINY_MODELS if model.name == "flux")
    model, grid = flux.build(), flux.grid(8, 8)
    with tm.merged(model, tm.ToMA(scope="stack", min_tokens=0, skip_blocks=0)) as handle:
        flux.call(model, [0], grid)
        assert "merged per block" not in str(handle.explain())
        width = model.config.num_attention_heads * model.config.attention_head_dim
        flux.call(model, [0], grid, controlnet_block_samples=[torch.zeros(1, 64, width)])
        assert "merged per block" in str(handle.explain())


def pick_first(similarity: torch.Tensor, count: int, available: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, device=similarity.device).expand(*similarity.shape[:2], count)


def test_a_schedule_of_two_steps_is_counted_as_one_of_ten() -> None:
    """What a call costs that selects, makes weights or does neither has nothing to do with how often it comes."""
    model = tiny("pixart").build()
    counted = []
    for options in ({}, {"select_every": 2}):
        with tm.merged(model, tm.ToMA(ratio=0.75, min_tokens=0, **options)) as handle:
            work = handle.explain(size=(128, 128)).models[0].multiply_adds
        counted.append((work.steady, work.weights, work.select))
    assert counted[0][0] < counted[0][1] < counted[0][2]
    assert counted[1] == counted[0]


def test_the_grid_is_known_too_where_ids_are_given_by_position() -> None:
    flux = tiny("flux")
    model = flux.build()
    names = (
        "hidden_states",
        "encoder_hidden_states",
        "pooled_projections",
        "timestep",
        "img_ids",
        "txt_ids",
        "guidance",
    )
    with tm.merged(model, tm.ToMA(min_tokens=0, skip_blocks=0)) as handle, torch.no_grad():
        model(*(flux.inputs([0], (8, 8))[name] for name in names))
        assert handle.explain().models[0].stacks[0].grid == (8, 8)


def test_sana_is_explained_at_the_size_it_was_made_for() -> None:
    """Its autoencoder shrinks images by 32, not by 8."""
    from diffusers import SanaTransformer2DModel

    with torch.device("meta"):
        model = SanaTransformer2DModel(num_layers=1)
    with tm.merged(model, tm.TileMean()) as handle:
        assert handle.explain().models[0].stacks[0].grid == (32, 32)


def test_weights_kept_in_eight_bits_are_explained_as_they_are_computed_with(unet: TinyModel) -> None:
    model = unet.build()
    model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    with tm.merged(model, tm.ToMA(ratio=0.5, min_tokens=0, tile=(2, 2))) as handle:
        assert handle.explain(size=(128, 128)).models[0].multiply_adds.saving > 0


def test_an_ip_adapter_of_a_transformer_does_not_stand_in_the_way() -> None:
    flux = tiny("flux")
    model = flux.build()
    with tm.merged(model, tm.ToMA(min_tokens=0, skip_blocks=0)) as handle:
        flux.call(model, [0], (8, 8))
        root = handle._sessions[0]
        assert root.last_call is not None
        # As a pipeline with an IP-Adapter calls it.
        root.last_call[1]["joint_attention_kwargs"] = {"ip_adapter_image_embeds": [torch.empty(1, 1, 4, device="meta")]}
        assert handle.explain().models[0].multiply_adds.saving > 0


def test_of_few_steps_less_is_saved(unet: TinyModel) -> None:
    """An image of 4 steps has two full ones, one of 10 three, and one of many a sixth of them."""
    with tm.merged(unet.build(), tm.TileMean(tile=2, min_tokens=0)) as handle:
        reports = {steps: handle.explain(size=(128, 128), steps=steps) for steps in (4, 10, None)}
        with pytest.raises(tm.TokenMergeError, match="steps is 0"):
            handle.explain(size=(128, 128), steps=0)
    for steps, full in ((4, 2 / 4), (10, 3 / 10), (None, 1 / 6)):
        work = reports[steps].models[0].multiply_adds
        assert work.average == pytest.approx(full * work.full + (1 - full) * work.steady)
    assert "merged over 4 steps" in str(reports[4])
    assert "merged over many steps" in str(reports[None])
    assert "every 6 steps or 35% of the noise, whichever is sooner" in str(reports[None])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *[({"size": size}, "height, width") for size in (512, "512x512", (0, 0), (-8, 8), (8, 8, 8), (64.0, 64.0))],
        ({"size": (10**9, 10**9)}, "from 1 to 8192"),
        *[({"batch": batch}, "batch is ") for batch in (0, -1, "1")],
    ],
)
def test_a_size_or_batch_that_cannot_be_is_a_sentence(unet: TinyModel, asked: dict[str, object], said: str) -> None:
    with tm.merged(unet.build(), tm.SkipSteps()) as handle, pytest.raises(tm.TokenMergeError, match=said):
        handle.explain(**asked)


def test_a_timestep_that_is_a_number_is_no_reason_to_count_otherwise(unet: TinyModel) -> None:
    counted = []
    for timestep in (500, torch.tensor(500)):
        model = unet.build()
        config = tm.TileMean(tile=2, keys="all", min_tokens=0)
        with tm.merged(model, config) as handle, torch.no_grad():
            model(**{**unet.inputs([0], (16, 16)), "timestep": timestep})
            counted.append(handle.explain().models[0].multiply_adds)
    assert counted[0] == counted[1]
    assert counted[0].full > counted[0].unmerged  # it also runs merged


def test_a_method_that_merges_no_tokens_is_explained(unet: TinyModel) -> None:
    with tm.merged(unet.build(), tm.SkipSteps()) as handle:
        text = str(handle.explain(size=(128, 128)))
    assert "SkipSteps merges no tokens" in text
    assert "50.0% saved" in text
