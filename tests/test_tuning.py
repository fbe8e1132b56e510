"""tune(): the first config from the fast end that keeps the budget, unmerged images made once, clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tokenmerge as tm
from tokenmerge.autotune.generator import check_options
from tokenmerge.autotune.tune import BudgetError, default_ladder, tune
from tokenmerge.errors import ConfigError, UnsupportedModelError
from tokenmerge.runtime.fidelity import fidelity

OPTIONS: dict[str, Any] = {"num_inference_steps": 2, "width": 256, "height": 256, "progress": False}
CANDIDATES = [tm.ToMA(ratio=ratio) for ratio in (0.25, 0.75, 0.5)]
PROMPTS = ["a cat", "a red house"]


@pytest.fixture(scope="module")
def pipe() -> Any:
    from tokenmerge.runtime.tiny_random import build_tiny_random

    return build_tiny_random()


def generate(pipe: Any, prompt: str, config: tm.MergeConfig | None = None) -> Any:
    handle = None if config is None else tm.apply(pipe, config)
    generator = torch.Generator().manual_seed(0)
    image = pipe(prompt=prompt, generator=generator, num_inference_steps=2, width=256, height=256).images[0]
    if handle is not None:
        handle.remove()
    return image


@pytest.fixture(scope="module")
def by_hand(pipe: Any) -> dict[float, float]:
    """Mean PSNR of each candidate, by ratio."""
    pipe.set_progress_bar_config(disable=True)
    plain = [generate(pipe, prompt) for prompt in PROMPTS]
    means = {}
    for config in CANDIDATES:
        values = [
            fidelity(before, generate(pipe, prompt, config)).psnr for before, prompt in zip(plain, PROMPTS, strict=True)
        ]
        means[config.number("ratio")] = sum(100.0 if value is None else value for value in values) / len(values)
    return means


def test_it_finds_the_first_that_keeps_the_budget_from_the_fast_end(pipe: Any, by_hand: dict[float, float]) -> None:
    assert by_hand[0.75] < by_hand[0.25]  # or the budget below would be met by the first
    budget = (max(by_hand[0.75], by_hand[0.5]) + by_hand[0.25]) / 2 if by_hand[0.5] < by_hand[0.25] else by_hand[0.5]
    found = tune(pipe, PROMPTS, min_psnr=budget, candidates=CANDIDATES, **OPTIONS)
    ratios = [trial.config.ratio for trial in found.trials]
    assert ratios == [0.75, 0.5, 0.25][: len(ratios)]  # the least work first
    assert found.config is found.trials[-1].config
    for trial in found.trials:
        assert trial.mean_psnr == pytest.approx(by_hand[trial.config.number("ratio")])
        assert (trial.mean_psnr >= budget) == (trial is found.trials[-1])
    works = [trial.work for trial in found.trials]
    assert works == sorted(works)
    assert max(works) < 1


def test_a_low_budget_takes_the_fastest(pipe: Any) -> None:
    found = tune(pipe, PROMPTS[:1], min_psnr=1, candidates=CANDIDATES, **OPTIONS)
    assert found.config.ratio == 0.75
    assert len(found.trials) == 1
    assert "ToMA(ratio=0.75)" in str(found)


def test_unmerged_images_are_made_once(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    kind = type(pipe)
    original = kind.__call__

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["num_inference_steps"] == 2:
            calls.append(bool(self.unet._forward_pre_hooks))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counting)
    with pytest.raises(BudgetError):
        tune(pipe, PROMPTS, min_psnr=99, candidates=CANDIDATES, **OPTIONS)
    assert calls == [False] * 2 + [True] * 2 * len(CANDIDATES)


def test_none_is_an_error_that_names_the_nearest(pipe: Any, by_hand: dict[float, float]) -> None:
    best = max(by_hand, key=lambda ratio: by_hand[ratio])
    with pytest.raises(
        BudgetError, match=rf"none of 3 configs keeps 99 dB: .*ratio={best}\) with {by_hand[best]:.1f} dB"
    ) as error:
        tune(pipe, PROMPTS, min_psnr=99, candidates=CANDIDATES, **OPTIONS)
    assert len(error.value.trials) == 3
    assert not pipe.unet._forward_pre_hooks  # nothing is left in the model


def test_the_config_can_be_saved_and_used_again(pipe: Any, tmp_path: Path) -> None:
    found = tune(pipe, "a cat", min_psnr=1, candidates=CANDIDATES, **OPTIONS)
    found.save(tmp_path / "config.json")
    assert tm.MergeConfig.from_dict(json.loads((tmp_path / "config.json").read_text())) == found.config
    reported = json.loads(json.dumps(found.to_dict()))
    assert reported["speedup"] > 0
    assert reported["trials"][0]["config"]["ratio"] == 0.75


def test_the_default_ladder_keeps_what_fits(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmerge.autotune.tune.RATIOS", (0.6,))  # a shorter one
    found = tune(pipe, "a cat", min_psnr=1, **OPTIONS)
    assert found.config in default_ladder()
    everything = default_ladder()
    assert len(everything) == len({repr(config) for config in everything})


@pytest.mark.parametrize(
    ("prompts", "more", "words"),
    [
        ([], {}, "no prompt"),
        (["a cat"], {"seeds": []}, "no seed"),
        (["a cat"], {"seeds": 3}, r"seeds is 3: it takes a list, such as \[0, 1\]"),
        (None, {}, "prompts is None: it takes a list"),
        (["a cat"], {"min_psnr": 0}, "min_psnr is 0"),
        (["a cat"], {"min_psnr": "high"}, "min_psnr is 'high'"),
        (["a cat"], {"candidates": []}, "no candidate"),
        (["a cat"], {"candidates": ["balancd"]}, "preset 'balancd' is not known"),
        (["a cat"], {"candidates": [0.5]}, "config is 0.5: give the name of a preset"),
        (["a cat"], {"candidates": [tm.ToMA]}, r"that is the class, so write ToMA\(\)"),
        (["a cat"], {"candidates": [{"method": "ToMA"}]}, "MergeConfig.from_dict"),
        (["a cat"], {"candidates": ["toma"]}, r"use one of 'quality', .* or give a method"),
        ([3], {}, "a prompt is 3: a pipeline takes a text"),
        (["a cat"], {"num_inference_steps": 0}, "num_inference_steps is 0"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_drawn(pipe: Any, prompts: Any, more: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tune(pipe, prompts, **{**OPTIONS, **more})


def test_an_argument_that_the_pipeline_does_not_take_is_refused() -> None:
    class Pipeline:
        def __call__(self, prompt: str, num_inference_steps: int = 50) -> None: ...

    check_options(Pipeline(), {"num_inference_steps": 4})
    with pytest.raises(ConfigError, match="Pipeline takes no argument 'num_steps': did you mean num_inference_steps"):
        check_options(Pipeline(), {"num_steps": 4})


def test_what_is_no_pipeline_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="'sdxl' is a name: load the model first"):
        tune("sdxl", ["a cat"])


def test_a_bare_model_is_refused(pipe: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="generates no images by itself: give the pipeline"):
        tune(pipe.unet, ["a cat"])


def test_a_candidate_that_does_not_fit_is_an_error(pipe: Any) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        tune(pipe, ["a cat"], candidates=[tm.ToMA(tile=(64, 64), min_tokens=0)], **OPTIONS)


def test_the_pipelines_own_bar_is_put_back(pipe: Any) -> None:
    pipe.set_progress_bar_config(desc="mine", disable=True)
    tune(pipe, "a cat", min_psnr=1, candidates=CANDIDATES, **OPTIONS)
    assert pipe._progress_bar_config == {"desc": "mine", "disable": True}
