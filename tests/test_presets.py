"""Presets: there is one of each name for every family, they fit, and they save in the order they promise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checks import in_turn
from tiny_models import TINY_MODELS, TinyModel, made, tiny

import tokenmerge as tm
from tokenmerge.engine.describe import policy_of
from tokenmerge.engine.schedule import count_steps
from tokenmerge.errors import ConfigError, UnsupportedModelError
from tokenmerge.presets import NAMES

# Models of several levels.
UNETS = ("sd15", "sdxl", "kolors", "animatediff", "text-to-video", "i2vgen", "stable-video")


@pytest.mark.parametrize("what", TINY_MODELS, ids=str)
def test_keys_are_sampled_at_every_step_in_models_of_several_levels(what: TinyModel) -> None:
    for name in NAMES:
        config = tm.preset(name, made(what.build))
        assert isinstance(config, tm.SampledKeys if what.name in UNETS else tm.SkipSteps)
        assert config.step_speedup > 1


@pytest.mark.parametrize("what", TINY_MODELS, ids=str)
def test_with_a_mask_tokens_are_merged_in_tiles_and_those_of_videos_are_deep(what: TinyModel) -> None:
    config = tm.preset("balanced", made(what.build), merge_tokens=True)
    assert config.tile == ((4, 2, 2) if what.video else (4, 4))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("frames", "kept"), [(1, 16), (2, 16), (5, 32), (8, 32)])
def test_tiles_of_videos_are_no_deeper_than_there_are_frames(frames: int, kept: int) -> None:
    config = tm.preset("balanced", made(tiny("wan").build), merge_tokens=True)
    assert config.layout((frames, 8, 8)).kept == kept


@in_turn("what, name", NAMES)
def test_they_fit_the_model(what: TinyModel, name: Any) -> None:
    model = made(what.build)
    config = tm.preset(name, model)
    assert tm.MergeConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with tm.merged(model, config):
        pass


def test_apply_takes_them_by_name_and_balanced_by_default() -> None:
    model = made(tiny("sd15").build)
    with tm.merged(model) as handle:
        assert handle.config == tm.preset("balanced", model)
    for name in NAMES:
        with tm.merged(model, name) as handle:
            assert handle.config == tm.preset(name, model)
    with pytest.raises(ConfigError, match="'quality', 'balanced', 'fast'"):
        tm.apply(model, "best")
    with pytest.raises(ConfigError, match=r"that is the class, so write ToMA\(\)"):
        tm.apply(model, tm.ToMA)  # type: ignore[arg-type]
    for given in (0.5, None, tm.MergeConfig()):  # the base of all methods says nothing
        with pytest.raises(ConfigError, match="the name of a preset"):
            tm.apply(model, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [2, 4, 10, 20, 50])
def test_quality_has_at_least_as_many_full_steps_as_balanced(steps: int) -> None:
    model = made(tiny("sd3").build)
    full = {name: count_steps(policy_of(tm.preset(name, model, merge_tokens=True)), steps).full for name in NAMES}
    assert full["quality"] >= full["balanced"] >= full["fast"]


@pytest.mark.parametrize("what", [tiny("sd15"), tiny("sd3")], ids=str)
def test_fast_saves_more_than_balanced_and_balanced_more_than_quality(what: TinyModel) -> None:
    model = made(what.build)
    savings = []
    for name in NAMES:
        with tm.merged(model, tm.preset(name, model)) as handle:
            savings.append(handle.explain(size=(384, 384)).models[0].multiply_adds.saving)
    assert savings == sorted(savings)
    assert savings[0] > 0


def test_a_pipeline_is_as_good_as_its_model() -> None:
    from tokenmerge.runtime.tiny_random import build_tiny_random

    pipe = build_tiny_random()
    assert tm.preset("quality", pipe) == tm.preset("quality", pipe.unet)


def test_an_unknown_name_and_an_unknown_model_are_errors() -> None:
    with pytest.raises(ConfigError, match="'quality', 'balanced', 'fast'"):
        tm.preset("best", made(tiny("sd15").build))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="pipeline"):
        tm.preset("fast", "sdxl")


def test_the_released_code_merges_every_third_step_in_tiles() -> None:
    config = tm.ToMA.released(0.25)
    assert config.merge_every == 3
    assert vars(config) == vars(tm.ToMA.paper_tile(0.25))
