"""Every rival computes less, changes the image, and leaves no trace; a rival that does not fit says why."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tokenmerge.accelerations.base import Acceleration, Generation, refuse_misfit, require_package
from tokenmerge.accelerations.diffusers_caches import DiffusersCache
from tokenmerge.accelerations.named import named_acceleration
from tokenmerge.accelerations.together import Together
from tokenmerge.api import denoisers_of
from tokenmerge.errors import ConfigError
from tokenmerge.runtime.multiply_adds import executed_in

STEPS = 8

ON_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "first-block-cache": {"threshold": 5.0},
    "taylorseer": {"cache_interval": 3},
    "taylorseer-lite": {"cache_interval": 3},
    "mag-cache": {"threshold": 0.5},
    "faster-cache": {},
    "pyramid-attention-broadcast": {},
    "cache-dit": {"residual_diff_threshold": 5.0, "Fn_compute_blocks": 1, "max_warmup_steps": 2},
}
ON_UNETS: dict[str, dict[str, Any]] = {"deepcache": {}, "tomesd-package": {"ratio": 0.5}}


def traces(model: torch.nn.Module) -> list[Any]:
    """What modules hold besides their weights, and their class."""
    return [(type(module), set(vars(module)), len(module._forward_hooks)) for module in model.modules()]


def check_rival(rival: Acceleration, pipe: Any, calls: int, latents: Any) -> None:
    (model,) = denoisers_of(pipe)
    generation = Generation(STEPS, calls)
    with executed_in([model]) as plain:
        expected = latents(pipe)
    before, call = traces(model), type(pipe).__call__
    rival = rival.prepared(pipe, generation, lambda steps: latents(pipe, steps))
    with rival.applied(pipe, generation), executed_in([model]) as counted:
        faster = latents(pipe)
    assert 0 < counted.total < 0.97 * plain.total
    assert torch.isfinite(faster).all()
    assert not torch.equal(faster, expected)
    assert traces(model) == before
    assert type(pipe).__call__ is call
    assert torch.equal(latents(pipe), expected)


@pytest.mark.parametrize("name", ON_TRANSFORMERS)
def test_a_rival_of_transformers(name: str, flux: Any, latents: Any) -> None:
    rival = named_acceleration(name, ON_TRANSFORMERS[name])
    assert rival.misfit(flux) is None
    assert not rival.ours
    check_rival(rival, flux, 2, latents)


@pytest.mark.parametrize("name", ON_UNETS)
def test_a_rival_of_unets(name: str, sd: Any, latents: Any) -> None:
    rival = named_acceleration(name, ON_UNETS[name])
    assert rival.misfit(sd) is None
    check_rival(rival, sd, 1, latents)


@pytest.mark.parametrize("name", [*ON_TRANSFORMERS, *ON_UNETS])
def test_a_rival_that_does_not_fit_says_why(name: str, sd: Any, flux: Any) -> None:
    rival = named_acceleration(name, {**ON_TRANSFORMERS, **ON_UNETS}[name])
    with pytest.raises(ConfigError, match=f"{name} does not fit .*Pipeline: .*Leave it out"):
        refuse_misfit(name, rival, sd if name in ON_TRANSFORMERS else flux)


def test_fewer_steps_are_the_pipeline_with_fewer_steps(sd: Any, latents: Any) -> None:
    fewer = named_acceleration("fewer-steps", {"fraction": 0.5})
    with fewer.applied(sd, Generation(4)):
        assert torch.equal(latents(sd, fewer.steps_of(STEPS)), latents(sd, STEPS // 2))


def test_guidance_branches_do_not_get_each_others_attention(flux: Any, latents: Any) -> None:
    """With a range so long that attention runs once a branch: one state would give both branches the first's."""
    rival = DiffusersCache("pyramid-attention-broadcast", {"spatial_attention_timestep_skip_range": (0, 1001)})
    with rival.applied(flux, Generation(STEPS, 2)):
        apart = latents(flux)
    with rival.applied(flux, Generation(STEPS, 1)):
        mixed = latents(flux)
    expected = latents(flux)
    assert (apart - expected).norm() < (mixed - expected).norm()


def test_mag_cache_measures_its_ratios_once_for_each_step(flux: Any, latents: Any) -> None:
    rival = DiffusersCache("mag-cache", {"threshold": 0.5})
    prepared = rival.prepared(flux, Generation(STEPS, 2), lambda steps: latents(flux, steps))
    assert len(prepared.ratios) == STEPS
    assert prepared.ratios[0] == 1.0
    assert prepared.prepared(flux, Generation(STEPS, 2), pytest.fail) is prepared


def test_a_preset_and_a_cache_together(flux: Any, latents: Any) -> None:
    both = Together(named_acceleration("toma", ratio=0.5), named_acceleration("taylorseer-lite", {"cache_interval": 3}))
    assert both.ours
    assert not both.adapts
    assert both.settings()["also"] == {"cache": "taylorseer-lite", "cache_interval": 3}
    check_rival(both, flux, 2, latents)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("fewer-steps", {"fraction": 1.5}, "fraction is 1.5"),
        ("fewer-steps", {"share": 0.5}, "cannot be made of these options"),
        ("first-block-cache", {"treshold": 1}, "has no option 'treshold'"),
        ("cache-dit", {"mask": "slowest"}, "use one of slow, medium"),
        ("cache-dit", {"blocks": 3}, "has no option 'blocks'"),
        ("deepcache", {"cache_interval": 1}, "cache_interval is 1"),
        ("tomesd-package", {"ratio": 0.9}, "at most 0.75"),
        ("preset", {"preset": "best"}, "preset 'best' is not known"),
        ("deep-cache", {}, "did you mean deepcache"),
    ],
)
def test_wrong_options_are_a_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        named_acceleration(name, options)


def test_a_missing_package_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"needs the package nothing: pip install 'tokenmerge\[peers\]'"):
        require_package("no_such_package", "nothing")


def test_settings_are_plain_values() -> None:
    rival = named_acceleration("cache-dit", {"mask": "fast"})
    assert rival.settings() == {"package": "cache-dit", "mask": "fast", "taylorseer": 1}
    assert dataclasses.replace(rival, mask=None).adapts
