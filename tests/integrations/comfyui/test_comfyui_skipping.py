"""Skipped steps in ComfyUI: what its samplers say about their steps, which of them are computed, and what it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import comfy.samplers
import embedded_models
import pytest
import small_models
import torch
from probes import Attentions, hooks_on, largest_difference
from small_models import sample

import tokenmerge as tm
from tokenmerge.errors import ConfigError, NothingMergedWarning
from tokenmerge.integrations.comfyui.nodes import explained
from tokenmerge.integrations.comfyui.sampler_calls import calls_of, clean_weights
from tokenmerge.integrations.comfyui.sampling import Merging
from tokenmerge.presets import preset

TWICE = tm.SkipSteps(step_speedup=2.0)
SMALL = (16, 16)  # latents
ADDS_NOISE = ("sde", "ancestral", "ddpm", "lcm", "seeds", "sa_solver")
# They read what guidance makes of an output, or choose their steps by the image.
UNKNOWN = ("cfg_pp", "dpm_adaptive")


@pytest.fixture(scope="module")
def flux() -> Any:
    return small_models.flux()


def calls(model: Any, sampler: str, steps: int) -> Any:
    kind = model.model.model_sampling
    guider = SimpleNamespace(model_patcher=model, inner_model=model.model)
    sigmas = comfy.samplers.calculate_sigmas(kind, "simple", steps)
    return sigmas, calls_of(comfy.samplers.sampler_object(sampler), guider, kind, sigmas)


@pytest.mark.parametrize("name", comfy.samplers.SAMPLER_NAMES)
def test_what_a_sampler_does_is_found_by_running_it(name: str, flux: Any) -> None:
    before = torch.random.get_rng_state()
    sigmas, found = calls(flux, name, 8)
    assert torch.equal(torch.random.get_rng_state(), before)
    if found is None:
        assert any(part in name for part in UNKNOWN)
        return
    assert found.adds_noise == any(part in name for part in ADDS_NOISE)
    assert found.sigmas[0] == pytest.approx(float(sigmas[0]), rel=1e-3)
    assert min(found.sigmas) > 0
    assert len(found.sigmas) >= 7


def test_the_effects_of_eulers_method_are_its_steps(flux: Any) -> None:
    sigmas, found = calls(flux, "euler", 8)
    assert found.sigmas == pytest.approx(sigmas[:-1].tolist())
    assert found.effects == pytest.approx((sigmas[1:] - sigmas[:-1]).tolist())
    count, effects = found.within(lambda sigma: sigma < 0.7)
    assert count == sum(sigma < 0.7 for sigma in found.sigmas)
    assert effects == found.effects[-count:]


@pytest.mark.parametrize("make", [small_models.flux, small_models.sdxl])
def test_a_clean_image_from_an_output_and_back(make: Any) -> None:
    kind = make().model.model_sampling
    noisy, output, sigma = torch.tensor([[0.7]]), torch.tensor([[-0.3]]), torch.tensor([0.6])
    of_input, of_output = clean_weights(kind, 0.6) or (0, 0)
    clean = of_input * kind.calculate_input(sigma, noisy) - of_output * output
    assert float(clean) == pytest.approx(float(kind.calculate_denoised(sigma, output, noisy)))


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "heun", "euler_ancestral", "dpmpp_2m_sde", "euler_cfg_pp"])
def test_steps_are_skipped_and_the_last_is_computed(sampler: str, flux: Any) -> None:
    merging, seen = Merging(TWICE), Attentions()
    sample(seen.on(merging.on(flux)), SMALL, steps=12, sampler=sampler, callback=seen.next_step)
    session = merging.last
    assert session is not None
    assert session.skipped_calls >= session.calls / 3
    computed = [keys > 0 for keys in seen.steps]
    # The callback comes behind the model's call, but for samplers that call it twice a step.
    assert computed[0]
    assert any(computed[-2:])
    assert f"{session.skipped_calls} of them skipped" in explained(merging.on(flux))
    assert hooks_on(flux) == 0


def test_short_runs_stay_as_they_are_and_say_so(flux: Any) -> None:
    merging = Merging(preset("balanced", flux.model.diffusion_model))
    with pytest.warns(NothingMergedWarning, match="fewer than six steps"):
        same = sample(merging.on(flux), steps=4)
    assert merging.last is not None
    assert (merging.last.merged_calls, merging.last.skipped_calls) == (0, 0)
    assert largest_difference(same, sample(flux, steps=4)) == 0


def test_only_a_part_of_the_sampling_is_skipped(flux: Any) -> None:
    merging, seen = Merging(TWICE, start=0.3), Attentions()
    clone = merging.on(flux)
    sample(seen.on(clone), SMALL, steps=16, callback=seen.next_step)
    computed = [keys > 0 for keys in seen.steps[:-1]]
    outside = merging.steps_outside
    assert 0 < outside < 8
    assert all(computed[: outside + 2])
    assert computed.count(False) == merging.last.skipped_calls > 0  # type: ignore[union-attr]
    assert computed[-1]
    assert f"{outside} of 16 steps lie outside start_percent and end_percent" in explained(clone)


def test_a_sampling_outside_of_the_part_says_so(flux: Any) -> None:
    """The second sampler of a hi-res fix begins behind the node's end."""
    merging = Merging(TWICE, end=0.2)
    clone = merging.on(flux)
    sigmas = torch.tensor([0.3, 0.2, 0.1, 0.0])
    plain = sample(flux, SMALL, sigmas=sigmas)
    with pytest.warns(NothingMergedWarning):
        assert torch.equal(sample(clone, SMALL, sigmas=sigmas), plain)
    assert "none of the 3 steps of the last run lies between" in explained(clone)


def test_a_run_that_stops_early_computes_its_last_step(flux: Any) -> None:
    """KSamplerAdvanced hands over to another sampler, which goes on from there."""
    seen = Attentions()
    sample(seen.on(Merging(TWICE).on(flux)), SMALL, steps=20, last_step=12, callback=seen.next_step)
    computed = [keys > 0 for keys in seen.steps[:-1]]
    assert len(computed) == 12
    assert computed[-1]
    assert computed.count(True) == 6


@pytest.mark.parametrize("sampler", ["euler", "euler_ancestral"])
def test_a_trained_model_stays_nearer_than_with_fewer_steps(sampler: str) -> None:
    model = embedded_models.photo_flux()
    prompt = embedded_models.prompt("granny smith apples")
    empty = torch.zeros(1, embedded_models.channels(), 32, 32)

    def latents(of: Any, steps: int) -> Any:
        return sample(of, image=empty, steps=steps, sampler=sampler, positive=prompt, negative=prompt)

    full = latents(model, 20)
    skipped = (latents(Merging(TWICE).on(model), 20) - full).norm()
    assert skipped < (latents(model, 10) - full).norm()
    assert skipped < 0.2 * full.norm()


def test_easycache_and_skipped_steps_are_refused_together(flux: Any) -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode

    for cache in (EasyCacheNode, LazyCacheNode):
        both = cache.execute(Merging(TWICE).on(flux), 0.05, 0.0, 1.0, False).args[0]
        with pytest.raises(ConfigError, match="EasyCache or LazyCache is on, and step_speedup=2 skips steps"):
            sample(both, SMALL, steps=8)
        assert hooks_on(flux) == 0


def test_an_inpainting_mask(flux: Any) -> None:
    """ComfyUI puts the image back where the mask is black at every call; forecasts must not bring anything else in."""
    mask = torch.zeros(1, 1, *SMALL)
    mask[..., 8:] = 1
    image = torch.randn(1, 16, *SMALL, generator=torch.Generator().manual_seed(3))
    painted = sample(Merging(TWICE).on(flux), SMALL, steps=8, noise_mask=mask, image=image)
    assert largest_difference(painted[..., :8], image[..., :8]) < 1e-5
    assert largest_difference(painted[..., 8:], image[..., 8:]) > 1e-2
