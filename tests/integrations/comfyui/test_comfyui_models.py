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
OTHERS = (small_models.qwen_image, small_models.lumina, small_models.wan)
every_family = pytest.mark.parametrize("make", [*MODELS, *OTHERS], ids=lambda make: make.__name__)
every_preset = pytest.mark.parametrize("name", ["quality", "balanced", "fast"])


def merging(model: Any, name: str = "balanced", **when: Any) -> Merging:
    return Merging(preset(name, model.model.diffusion_model), **when)


@every_family
@every_preset
def test_attention_sees_fewer_tokens(make: Any, name: str) -> None:
    plain, merged = Attentions(), Attentions()
    model = make()
    sample(plain.on(model))
    sample(merged.on(merging(model, name).on(model)))
    assert sum(merged.keys) < sum(plain.keys)
    if name != "quality" or make not in (small_models.sdxl, small_models.sd15):  # in UNets it leaves out keys alone
        assert sum(merged.queries) < sum(plain.queries)


@every_family
@pytest.mark.parametrize("scope", ["site", "block", "stack"])
def test_an_identity_plan_changes_nothing(make: Any, scope: Any) -> None:
    model = make()
    plain = sample(model, cfg=3.0)
    config = Identity(scope=scope, skip_blocks=0)
    assert largest_difference(sample(Merging(config).on(model), cfg=3.0), plain) < 1e-5


@every_family
def test_a_run_leaves_nothing_behind(make: Any) -> None:
    model = make()
    weights, plain = weights_of(model), sample(model)
    merged = sample(merging(model).on(model))
    assert not torch.equal(merged, plain)
    assert hooks_on(model) == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(model).items())
    assert torch.equal(sample(model), plain)


@every_model
def test_an_interrupt_leaves_nothing_behind(make: Any) -> None:
    """ComfyUI's button raises in the sampler's callback."""
    model = make()
    weights, plain = weights_of(model), sample(model)

    def interrupt(step: int, *_: Any) -> None:
        if step == 1:
            raise comfy.model_management.InterruptProcessingException

    clone = merging(model).on(model)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sample(clone, callback=interrupt)
    assert hooks_on(model) == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(model).items())
    assert torch.equal(sample(model), plain)
    # And the interrupted one begins anew.
    assert torch.equal(sample(clone), sample(merging(model).on(model)))


@every_model
def test_rows_of_guidance_batched_or_apart(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory makes ComfyUI call the model once for each conditioning."""
    model = make()
    batched = sample(merging(model).on(model), cfg=3.0, steps=6)
    seen = Attentions()
    monkeypatch.setattr(type(model.model), "memory_required", lambda *_, **__: 1e30)
    apart = sample(merging(model).on(seen.on(model)), cfg=3.0, steps=6)
    assert seen.batches == {1}
    assert largest_difference(apart, batched) < 1e-3


@every_model
def test_a_batch_is_merged_sample_by_sample(make: Any) -> None:
    model = make()
    both = sample(merging(model).on(model), batch=2)
    assert largest_difference(both[:1], sample(merging(model).on(model), batch=1)) < 1e-3


@every_model
@pytest.mark.parametrize("size", [(24, 56), (33, 47)])
def test_sizes_that_tiles_do_not_divide(make: Any, size: tuple[int, int]) -> None:
    model = make()
    seen, plain = Attentions(), Attentions()
    result = sample(merging(model).on(seen.on(model)), size=size)
    sample(plain.on(model), size=size)
    assert result.isfinite().all()
    assert sum(seen.keys) < sum(plain.keys)


@every_model
def test_only_a_part_of_the_sampling(make: Any) -> None:
    model = make()
    plain = keys_of_steps(model)
    late, early = (
        keys_of_steps(merging(model, "quality", **when).on(model)) for when in ({"start": 0.5}, {"end": 0.5})
    )
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
        sample(merging(model).on(model), size=(16, 16))
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
        merging(model)


@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m_sde", "euler_ancestral"])
def test_samplers_that_call_the_model_otherwise(sampler: str) -> None:
    model = small_models.sdxl()
    clone = merging(model).on(model)
    assert sample(clone, sampler=sampler, steps=5).isfinite().all()
    assert hooks_on(model) == 0
