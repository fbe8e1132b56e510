"""Skipped steps in pipelines and loops: what runs, what is remembered, and what is left when it is taken out."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FluxTransformer2DModel
from torch import Tensor

import tokenmerge as tm
from tokenmerge.errors import ConfigError, MergeRuntimeError, NothingMergedWarning
from tokenmerge.runtime.generation import generate
from tokenmerge.runtime.tiny_random import build_tiny_random

TWICE = tm.SkipSteps(step_speedup=2.0)


def image_of(pipe: Any, steps: int, prompt: str = "a red cat") -> Tensor:
    image = generate(pipe, prompt, 0, num_inference_steps=steps, width=64, height=64, output_type="pt")[0]
    return torch.as_tensor(image)


def count_runs(model: torch.nn.Module) -> list[int]:
    """Counts how often the insides of a model run."""
    runs = [0]

    def count(*_: Any) -> None:
        runs[0] += 1

    model.conv_in.register_forward_hook(count)  # type: ignore[operator, union-attr]
    return runs


def tiny_flux() -> FluxTransformer2DModel:
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=(2, 2, 4),
    ).eval()  # fmt: skip


def flux_call(time: float, latents: Tensor, text: Tensor) -> dict[str, Any]:
    ids = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0))
    return {
        "hidden_states": latents, "timestep": torch.tensor([time]), "encoder_hidden_states": text,
        "pooled_projections": text[:, 0], "txt_ids": torch.zeros(text.shape[1], 3), "img_ids": ids,
    }  # fmt: skip


@torch.no_grad()
def flux_loop(model: Any, steps: int) -> Tensor:
    """A loop of one's own: nobody says how many steps it has."""
    generator = torch.Generator().manual_seed(1)
    latents, text = torch.randn(1, 16, 4, generator=generator), torch.randn(1, 3, 8, generator=generator)
    for number in range(steps):
        latents = latents - model(**flux_call(1 - number / steps, latents, text)).sample / steps
    return latents


def test_a_pipeline_computes_half_of_its_steps_and_stays_near() -> None:
    pipe = build_tiny_random()
    runs = count_runs(pipe.unet)
    exact = image_of(pipe, 12)
    assert runs[0] == 12
    with tm.merged(pipe, TWICE) as handle:
        skipped = image_of(pipe, 12)
        assert runs[0] == 12 + 6
        other = image_of(pipe, 12, "a blue car")
        measured = handle.explain(steps=12).models[0].measured
        work = handle.explain(steps=12).models[0].multiply_adds
    assert measured is not None
    assert (measured.calls, measured.skipped) == (24, 12)
    assert work.average == work.unmerged / 2
    latents = 2 * 4 * 8 * 8 * 4  # guidance, channels, sides, bytes
    assert measured.cached_bytes == 2 * latents
    fewer = image_of(pipe, 6)
    assert (skipped - exact).abs().mean() < 0.5 * (fewer - exact).abs().mean()
    assert not torch.equal(other, skipped)


def test_every_image_begins_afresh() -> None:
    pipe = build_tiny_random()
    with tm.merged(pipe, TWICE):
        first = image_of(pipe, 10)
        image_of(pipe, 10, "a blue car")
        assert torch.equal(image_of(pipe, 10), first)


def test_images_of_few_steps_are_exact_and_a_warning_says_so_at_once_and_never_again() -> None:
    pipe = build_tiny_random()
    exact = image_of(pipe, 4)
    handle = tm.apply(pipe, TWICE)
    with pytest.warns(NothingMergedWarning, match="fewer than six steps"):
        assert torch.equal(image_of(pipe, 4), exact)
    image_of(pipe, 8)
    measured = handle.explain(steps=8).models[0].measured
    assert measured is not None
    assert (measured.full, measured.skipped) == (4 + 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle.remove()


def test_a_loop_of_few_steps_is_told_in_the_end() -> None:
    model = tiny_flux()
    handle = tm.apply(model, TWICE)
    flux_loop(model, 3)
    with pytest.warns(NothingMergedWarning, match="fewer than six steps"):
        handle.remove()


def test_taken_out_the_model_is_the_one_that_came_in() -> None:
    pipe = build_tiny_random()
    exact, before = image_of(pipe, 8), dict(vars(pipe.unet))
    handle = tm.apply(pipe, TWICE)
    assert inspect.signature(pipe.unet.forward) == inspect.signature(type(pipe.unet).forward.__get__(pipe.unet))
    image_of(pipe, 8)
    handle.remove()
    assert vars(pipe.unet).keys() == before.keys()
    assert torch.equal(image_of(pipe, 8), exact)


def test_a_copy_skips_by_itself() -> None:
    pipe = build_tiny_random()
    with tm.merged(pipe, TWICE):
        first = image_of(pipe, 8)
        pipe.unet = copied = copy.deepcopy(pipe.unet)
        assert torch.equal(image_of(pipe, 8), first)
        assert vars(copied)["forward"] is not vars(copy.deepcopy(copied))["forward"]
        assert vars(copied)["forward"]._model is copied


def test_a_forward_that_was_there_before_stays() -> None:
    """As offloaders put it there."""
    model = tiny_flux()
    original, calls = model.forward, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    model.forward = counted
    with tm.merged(model, TWICE):
        flux_loop(model, 16)
    assert 8 <= len(calls) < 16
    assert model.forward is counted


def test_a_loop_of_ones_own_stays_near_too() -> None:
    model = tiny_flux()
    exact = flux_loop(model, 20)
    with tm.merged(model, TWICE) as handle:
        skipped = flux_loop(model, 20)
        measured = handle.explain().models[0].measured
    assert measured is not None
    assert measured.skipped == 6
    assert (skipped - exact).abs().max() < 0.02 * exact.abs().max()


def test_compiled_models_skip_as_well() -> None:
    plain, compiled = tiny_flux(), tiny_flux()
    compiled.compile(backend="eager")
    with tm.merged(plain, TWICE), tm.merged(compiled, TWICE) as handle:
        assert torch.allclose(flux_loop(compiled, 12), flux_loop(plain, 12), atol=1e-6)
        measured = handle.explain().models[0].measured
    assert measured is not None
    assert measured.skipped > 0


def test_merging_and_skipping_go_together() -> None:
    pipe = build_tiny_random()
    with tm.merged(pipe, tm.TileMean(tile=2, correction=None, min_tokens=0, step_speedup=2.0)) as handle:
        image_of(pipe, 12)
        report = handle.explain(steps=12).models[0]
    assert report.measured is not None
    assert report.measured.skipped == 6
    assert report.multiply_adds.average < report.multiply_adds.unmerged / 2


def test_a_cache_beside_skipped_steps_is_refused_with_the_reason() -> None:
    model = tiny_flux()
    model.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    with tm.merged(model, TWICE), pytest.raises(MergeRuntimeError, match="disable_cache"):
        flux_loop(model, 8)


@pytest.mark.parametrize("value", [0.5, 11, "2", True, float("nan")])
def test_a_wrong_speedup_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="step_speedup"):
        tm.TileMean(step_speedup=value)
    with pytest.raises(ConfigError, match="above 1"):
        tm.SkipSteps(step_speedup=1)


def test_a_loop_of_its_own_may_say_how_many_steps_it_has() -> None:
    model = tiny_flux()
    with tm.merged(model, TWICE, steps=12) as handle:
        flux_loop(model, 12)
        measured = handle.explain(steps=12).models[0].measured
    assert measured is not None
    assert measured.skipped == 6
    with pytest.raises(ConfigError, match="steps"):
        tm.apply(model, TWICE, steps=0)
