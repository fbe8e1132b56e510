"""evaluate_model: the tables of an evaluation for a model without a pipeline, against a second computation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from by_hand import pixels_of
from checks import SMALL
from foreign_models import FlowDiT
from test_foreign import FlowFamily, seeded

import tokenmerge as tm
from tokenmerge.errors import ConfigError, UsageError
from tokenmerge.eval import evaluate_model
from tokenmerge.eval.own_model import as_image
from tokenmerge.models import FAMILIES
from tokenmerge.runtime.multiply_adds import executed_in

HALF = tm.ToMeSD(ratio=0.5, parts=("self", "mlp"), proportional=True, **SMALL)
SKIPPED = tm.SkipSteps(step_speedup=2.0)
LABELS, SEEDS, STEPS = (1, 2), (0, 5), 8


@pytest.fixture(scope="module")
def model() -> Iterator[nn.Module]:
    known = list(FAMILIES)
    tm.register_family(FlowFamily())
    yield seeded(FlowDiT)
    FAMILIES[:] = known


def sampler_of(model: nn.Module, guided: bool = False) -> Any:
    def sample(label: int | None, seed: int, steps: int) -> Tensor:
        noisy = torch.randn(1, 4, 32, 32, generator=torch.Generator().manual_seed(seed))
        for step in range(steps):
            time = torch.full((1,), step / steps)
            change = model(noisy, time, torch.tensor([label or 0]))
            if guided:
                change = 2 * change - model(noisy, time, torch.tensor([9]))
            noisy = noisy + change / steps
        return (noisy[:, :3] / 4 + 0.5).clamp(0, 1)

    return sample


@pytest.fixture(scope="module")
def finished(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("own") / "run"
    sample = sampler_of(model, guided=True)
    variants = ["fast", HALF, SKIPPED]
    results = evaluate_model(model, sample, variants, steps=STEPS, prompts=LABELS, seeds=SEEDS, out=out)
    return results, out


def test_each_variant_is_a_row(finished: tuple[Any, Path]) -> None:
    results, _ = finished
    assert [variant.label for variant in results.variants] == [
        "baseline",
        "fewer steps, 4 of 8",
        "tokenmerge, fast",
        "ToMeSD, r = 0.5, " + results.variants[3].setting,
        "SkipSteps",
    ]
    assert "proportional = True" in results.variants[3].setting
    assert (results.model, results.image.width, results.image.steps, results.pairs) == ("FlowDiT", 32, STEPS, 4)
    assert all(variant.timing.median > 0 for variant in results.variants)


def test_quality_is_that_of_the_images(finished: tuple[Any, Path]) -> None:
    results, out = finished
    for variant in results.variants[1:]:
        files = sorted((out / "images" / variant.key).glob("*.png"))
        assert len(files) == len(LABELS) * len(SEEDS)
        errors = [
            np.mean((pixels_of(file) - pixels_of(out / "images" / "baseline" / file.name)) ** 2) for file in files
        ]
        assert variant.metrics["psnr"].value == pytest.approx(np.mean(10 * np.log10(255**2 / np.array(errors))))
        assert 0 < variant.metrics["ssim"].value < 1
    assert results.unavailable or all("lpips" in variant.metrics for variant in results.variants[1:])


def test_images_are_those_that_the_function_makes(finished: tuple[Any, Path], model: nn.Module) -> None:
    _, out = finished
    sample = sampler_of(model, guided=True)
    assert np.array_equal(pixels_of(out / "images/baseline/00003.png"), np.asarray(as_image(sample(2, 5, STEPS))))
    assert np.array_equal(pixels_of(out / "images/fewer-steps_4/00000.png"), np.asarray(as_image(sample(1, 0, 4))))
    with tm.merged(model, SKIPPED, steps=STEPS):
        assert np.array_equal(pixels_of(out / "images/SkipSteps/00000.png"), np.asarray(as_image(sample(1, 0, STEPS))))


def test_multiply_adds_are_those_that_run(finished: tuple[Any, Path], model: nn.Module) -> None:
    results, _ = finished
    baseline, fewer, _, half, skipped = results.variants
    with executed_in([model]) as counted:
        sampler_of(model, guided=True)(1, 0, STEPS)
    assert baseline.multiply_adds == counted.total
    with tm.merged(model, HALF), executed_in([model]) as counted:
        sampler_of(model, guided=True)(1, 0, STEPS)
    assert half.multiply_adds == counted.total < baseline.multiply_adds
    assert fewer.saved == 2
    # As many steps are skipped as with a scheduler. To find out what the loop does costs little, even here.
    assert 1.98 < skipped.saved < 2


def test_the_tables_are_printed_and_kept(finished: tuple[Any, Path]) -> None:
    results, out = finished
    assert str(results) == (out / "tables.md").read_text()
    for heading in ("multiply-adds, G", "median s/im", "PSNR ↑", "SSIM ↑", "LPIPS ↓", "| fewer steps, 4 of 8"):
        assert heading in str(results)
    assert (out / "report.html").exists()


def test_one_step_and_no_folder(model: nn.Module) -> None:
    results = evaluate_model(model, sampler_of(model), [HALF], steps=1, metrics=["psnr"])
    assert [variant.name for variant in results.variants] == ["baseline", "ToMeSD"]  # one step has no fewer
    assert set(results.variants[1].metrics) == {"psnr"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"variants": [3]}, "variants has 3: give names of presets"),
        ({"variants": ["best"]}, "preset 'best' is not known"),
        ({"variants": []}, "no variant"),
        ({"variants": [HALF, HALF]}, "would share the folder"),
        ({"prompts": []}, "there is no prompt"),
        ({"prompts": [1, 1]}, "two prompts are the same"),
        ({"metrics": ["beauty"]}, "metrics has 'beauty'"),
        ({"fewer_steps": [2]}, "fewer_steps: fraction is 2"),
        ({"steps": 0}, "steps is 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_evaluated_is_said(model: nn.Module, wrong: dict[str, Any], sentence: str) -> None:
    options = {"variants": [HALF], "steps": 2, **wrong}
    with pytest.raises(ConfigError, match=sentence):
        evaluate_model(model, sampler_of(model), **options)


def test_a_folder_of_other_images_is_refused(model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("name = 'old'")
    with pytest.raises(ConfigError, match="exists: give a new or empty folder"):
        evaluate_model(model, sampler_of(model), [HALF], steps=2, out=tmp_path)


def test_values_become_the_same_image_in_every_form() -> None:
    values = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0))
    bytes_ = (255 * values).round().to(torch.uint8)
    expected = bytes_.permute(1, 2, 0).numpy()
    for form in (values, values[None], values.permute(1, 2, 0).numpy(), bytes_, Image.fromarray(expected)):
        assert np.array_equal(np.asarray(as_image(form)), expected)
    grey = np.asarray(as_image(values[:1]))
    assert grey.shape == (5, 4, 3)
    assert np.array_equal(grey[..., 2], expected[..., 0])


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (torch.zeros(1, 4, 8, 8), r"shape \(1, 4, 8, 8\).*Decode latents first"),
        (torch.zeros(2, 3, 8, 8), r"shape \(2, 3, 8, 8\): metrics need one image"),
        (torch.full((3, 8, 8), -1.0), r"from -1.00 to -1.00.*\(image / 2 \+ 0.5\)"),
        (torch.full((3, 8, 8), float("nan")), "from nan"),
    ],
)
def test_values_that_are_no_image_are_refused(made: Tensor, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        as_image(made)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenmerge.eval

    monkeypatch.setattr(tokenmerge.eval, "PACKAGES", ("no_such_package",))
    with pytest.raises(UsageError, match=r"evaluate_model needs no_such_package: pip install 'tokenmerge\[eval\]'"):
        tokenmerge.eval.evaluate_model  # noqa: B018
