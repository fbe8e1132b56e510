"""Merging in ComfyUI's own models: fewer tokens, nothing left behind, and the same as without where nothing merges."""

from __future__ import annotations

from typing import Any

import comfy.model_management
import pytest
import small_models
import torch
from identity import Identity
from probes import Attentions, hooks_on, largest_difference, weights_of
from small_models import sample

import tokenmerge as tm
from tokenmerge.errors import NothingMergedError
from tokenmerge.integrations.comfyui.sampling import Merging
from tokenmerge.presets import preset

MODELS = (small_models.sdxl, small_models.sd15, small_models.flux)
every_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
OTHERS = (small_models.sd3, small_models.qwen_image, small_models.lumina, small_models.wan, small_models.ltx)
every_family = pytest.mark.parametrize("make", [*MODELS, *OTHERS], ids=lambda make: make.__name__)
every_preset = pytest.mark.parametrize("name", ["quality", "balanced", "fast"])


# Tile means and a correction, which merge queries and keys in every model; and both ways to skip steps.
MEANS = tm.TileMean()
WAYS = (MEANS, tm.SkipSteps(), tm.SampledKeys(step_speedup=2, outliers=8, skip_blocks=0))
every_way = pytest.mark.parametrize("config", WAYS, ids=lambda config: type(config).__name__)


@every_family
@every_preset
def test_attention_sees_fewer_tokens(make: Any, name: Any) -> None:
    model = make()
    config = preset(name, model.model.diffusion_model)
    assert sum(keys_of_steps(Merging(config).on(model))) < 0.9 * sum(keys_of_steps(model))


@every_family
def test_merged_steps_ask_fewer_queries_and_read_fewer_keys(make: Any) -> None:
    plain, merged = Attentions(), Attentions()
    model = make()
    sample(plain.on(model))
    sample(Merging(MEANS).on(merged.on(model)))
    assert sum(merged.keys) < sum(plain.keys)
    assert sum(merged.queries) < sum(plain.queries)


@every_family
@pytest.mark.parametrize("scope", ["site", "block", "stack"])
def test_an_identity_plan_changes_nothing(make: Any, scope: Any) -> None:
    model = make()
    plain = sample(model, cfg=3.0)
    config = Identity(scope=scope, skip_blocks=0)
    assert largest_difference(sample(Merging(config).on(model), cfg=3.0), plain) < 1e-5


@pytest.mark.parametrize(
    ("make", "config"),
    # Wan's attention takes no mask, so its keys cannot be sampled.
    [(make, way) for make in (*MODELS, *OTHERS) for way in WAYS if make is not small_models.wan or way is not WAYS[-1]],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_run_leaves_nothing_behind(make: Any, config: Any) -> None:
    model = make()
    weights, plain = weights_of(model), sample(model, steps=6)
    merged = sample(Merging(config).on(model), steps=6)
    assert not torch.equal(merged, plain)
    assert hooks_on(model) == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(model).items())
    assert torch.equal(sample(model, steps=6), plain)


@every_model
@every_way
def test_an_interrupt_leaves_nothing_behind(make: Any, config: Any) -> None:
    """ComfyUI's button raises in the sampler's callback."""
    model = make()
    weights, plain = weights_of(model), sample(model, steps=8)

    def interrupt(step: int, *_: Any) -> None:
        if step == 5:
            raise comfy.model_management.InterruptProcessingException

    clone = Merging(config).on(model)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sample(clone, steps=8, callback=interrupt)
    assert hooks_on(model) == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(model).items())
    assert torch.equal(sample(model, steps=8), plain)
    # And the interrupted one starts from the beginning.
    assert torch.equal(sample(clone, steps=8), sample(Merging(config).on(model), steps=8))


@every_model
@every_way
def test_rows_of_guidance_batched_or_apart(make: Any, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory makes ComfyUI call the model once for each conditioning."""
    model = make()
    batched = sample(Merging(config).on(model), cfg=3.0, steps=8)
    seen = Attentions()
    monkeypatch.setattr(type(model.model), "memory_required", lambda *_, **__: 1e30)
    apart = sample(Merging(config).on(seen.on(model)), cfg=3.0, steps=8)
    assert seen.batches == {1}
    assert largest_difference(apart, batched) < 1e-3


@every_model
@every_way
def test_a_batch_is_merged_sample_by_sample(make: Any, config: Any) -> None:
    model = make()
    both = sample(Merging(config).on(model), batch=2, steps=6)
    assert largest_difference(both[:1], sample(Merging(config).on(model), batch=1, steps=6)) < 1e-3


@every_model
@pytest.mark.parametrize("size", [(24, 56), (33, 47)])
def test_sizes_that_tiles_do_not_divide(make: Any, size: tuple[int, int]) -> None:
    model = make()
    seen, plain = Attentions(), Attentions()
    result = sample(Merging(MEANS).on(seen.on(model)), size=size)
    sample(plain.on(model), size=size)
    assert result.isfinite().all()
    assert sum(seen.keys) < sum(plain.keys)


@every_model
def test_only_a_part_of_the_sampling(make: Any) -> None:
    model = make()
    plain = keys_of_steps(model)
    config = tm.SampledKeys(skip_blocks=0) if make is not small_models.flux else tm.TileMean(skip_blocks=0)
    late, early = (keys_of_steps(Merging(config, **when).on(model)) for when in ({"start": 0.5}, {"end": 0.5}))
    assert late[:3] == early[-3:] == plain[:3]
    assert min(late) < min(plain)
    assert min(early) < min(plain)


def keys_of_steps(model: Any) -> list[int]:
    """How many keys self-attention read at each of eight steps."""
    seen = Attentions()
    sample(seen.on(model), steps=8, callback=seen.next_step)
    return seen.steps[:-1]


def test_too_small_an_image_is_refused_in_a_sentence() -> None:
    model = small_models.flux()
    with pytest.raises(NothingMergedError, match=r"fewer than min_tokens=256"):
        sample(Merging(MEANS).on(model), size=(16, 16))
    assert hooks_on(model) == 0


def test_keys_can_be_sampled_inside_any_attention() -> None:
    """ComfyUI's attention on a CPU is not PyTorch's own, where keys can be left out."""
    model = small_models.flux()
    seen, plain = Attentions(), Attentions()
    sample(Merging(tm.SampledKeys(skip_blocks=0)).on(seen.on(model)))
    merged, whole = sample(Merging(tm.SampledKeys(skip_blocks=0)).on(model)), sample(plain.on(model))
    assert largest_difference(merged, whole) > 1e-3
    assert hooks_on(model) == 0


def test_relatives_that_are_not_known_are_refused() -> None:
    model = small_models.wan()
    unknown = type("VaceWanModel", (type(model.model.diffusion_model),), {})
    model.model.diffusion_model.__class__ = unknown
    with pytest.raises(tm.TokenMergeError, match="VaceWanModel is not a model that tokenmerge can merge in"):
        preset("balanced", model.model.diffusion_model)


@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m_sde", "euler_ancestral"])
def test_samplers_that_call_the_model_otherwise(sampler: str) -> None:
    model = small_models.sdxl()
    clone = Merging(MEANS).on(model)
    assert sample(clone, sampler=sampler, steps=5).isfinite().all()
    assert hooks_on(model) == 0
