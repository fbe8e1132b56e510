"""tune and compare with a function that generates, for models that have no pipeline."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent / "models"))
from checks import SMALL
from foreign_models import FlowDiT
from test_foreign import FlowFamily, seeded

import tokenmerge as tm
from tokenmerge.errors import ConfigError, UnsupportedModelError
from tokenmerge.models import FAMILIES

HALF = tm.ToMeSD(ratio=0.5, parts=("self", "mlp"), proportional=True, **SMALL)
MILD = tm.ToMeSD(ratio=0.25, parts=("self",), proportional=True, **SMALL)


@pytest.fixture
def model() -> Iterator[nn.Module]:
    known = list(FAMILIES)
    tm.register_family(FlowFamily())
    yield seeded(FlowDiT)
    FAMILIES[:] = known


def generate_with(model: nn.Module) -> Any:
    def generate(label: int, seed: int, steps: int = 3) -> Tensor:
        noisy = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(seed))
        for step in range(steps):
            noisy = noisy + model(noisy, torch.tensor([step / steps]), torch.tensor([label])) / steps
        return noisy

    return generate


def test_compare_measures_a_model_without_a_pipeline(model: nn.Module) -> None:
    found = tm.compare(model, HALF, prompts=[1, 2], seeds=(0, 1), generate=generate_with(model), steps=2)
    assert len(found.psnr) == len(found.seconds) == len(found.unmerged_seconds) == 4
    assert 0 < found.mean_psnr < 100
    assert 0 < found.work < 1
    assert f"{found.mean_psnr:.1f} dB" in str(found)
    closer = tm.compare(model, MILD, prompts=[1, 2], seeds=(0, 1), generate=generate_with(model), steps=2)
    assert closer.mean_psnr > found.mean_psnr
    assert closer.work > found.work


def test_tune_takes_the_one_with_the_least_work_that_keeps_the_budget(model: nn.Module) -> None:
    close = tm.compare(model, MILD, prompts=[1], generate=generate_with(model)).mean_psnr
    budget = close - 0.01
    found = tm.tune(model, [1], budget, candidates=[MILD, HALF], generate=generate_with(model), progress=False)
    assert found.config == MILD
    assert [trial.config for trial in found.trials] == [HALF, MILD]


def guided_with(model: nn.Module, calls: list[Tensor]) -> Any:
    """Guidance by a second call at each step."""

    def generate(label: int, seed: int, steps: int = 10) -> Tensor:
        noisy = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(seed))
        for step in range(steps):
            time = torch.full((1,), step / steps)
            guided, plain = (model(noisy, time, torch.tensor([each])) for each in (label, 9))
            noisy = noisy + (2 * guided - plain) / steps
        calls.append(noisy)
        return noisy

    return generate


def test_as_many_steps_are_skipped_as_are_counted(model: nn.Module) -> None:
    config = tm.SkipSteps(step_speedup=2.5)
    made: list[Tensor] = []
    found = tm.compare(model, config, prompts=[1], generate=guided_with(model, made))
    assert found.work == pytest.approx(0.4)
    with tm.merged(model, config, steps=10) as handle:
        guided_with(model, made)(1, 0)
        measured = handle.explain().models[0].measured
        assert "steps=" not in str(handle.explain())
    assert measured is not None
    assert measured.skipped == 12  # of 20 calls: 6 steps of 10, for both guidance branches
    compared, by_hand = made[-2:]
    assert torch.equal(by_hand, compared)  # compare skipped the same ones
    trial = tm.tune(model, [1], 1, candidates=[config], generate=guided_with(model, made), progress=False).trials[-1]
    assert trial.work == found.work
    assert torch.equal(made[-1], by_hand)


def test_explain_asks_for_the_number_of_steps(model: nn.Module) -> None:
    with tm.merged(model, tm.SkipSteps()) as handle:
        assert "steps=" not in str(handle.explain(size=(128, 128)))
        generate_with(model)(1, 0, steps=8)
        assert "Give steps= to" in str(handle.explain())


def test_a_model_by_itself_needs_a_function(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="generate=, a function of a prompt and a seed"):
        tm.tune(model, [1])
    with pytest.raises(ConfigError, match="generate is 3"):
        tm.compare(model, HALF, generate=3)  # type: ignore[arg-type]


def test_a_function_that_uses_another_model_is_refused(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match="never called the model"):
        tm.compare(model, HALF, prompts=[1], generate=generate_with(seeded(FlowDiT)))
