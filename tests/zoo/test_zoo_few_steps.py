"""A LoRA for four steps on an untrained `emoji-sd`, trained a step, exported and loaded as the packaged one is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokenmerge
from tokenmerge import zoo
from tokenmerge.errors import ModelLoadError
from tokenmerge.zoo import folders


@pytest.fixture(scope="module")
def weights(fresh_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights with an untrained `emoji-sd` and a LoRA of random weights."""
    from training.distil import FourSteps, teacher_tokenizer
    from training.export import write_lora

    folder = tmp_path_factory.mktemp("weights")
    shutil.copytree(fresh_sd, folder / "emoji-sd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "WEIGHTS", folder)
        torch.manual_seed(0)
        model = FourSteps(teacher_tokenizer())
        trained = [p for p in model.parameters() if p.requires_grad]
        model.loss(torch.randn(2, 16, 16, 16), torch.zeros(2, 16, dtype=torch.long), 1.0).backward()
        assert all(p.grad is not None for p in trained)
        for parameter in trained:
            torch.nn.init.normal_(parameter, std=0.05)
        write_lora(model, folder / "emoji-sd")
    return folder


@pytest.fixture(autouse=True)
def use_weights(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "WEIGHTS", weights)


def image(pipe: Any, **options: Any) -> np.ndarray:
    settings = {"num_inference_steps": 4, "height": 128, "width": 128, "output_type": "np"}
    generator = torch.Generator().manual_seed(0)
    pixels: np.ndarray = pipe("red heart", generator=generator, **settings, **options).images
    return pixels


def test_it_draws_what_the_stock_lora_loader_draws_without_guidance() -> None:
    stock = zoo.load("emoji-sd")
    before = image(stock, guidance_scale=1.0)
    stock.load_lora_weights(folders.lora_of("emoji-sd-4").parent)
    expected = image(stock, guidance_scale=1.0)
    found = image(zoo.load("emoji-sd", steps=4))
    assert np.abs(before - expected).max() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_it_runs_one_pass_a_step_whatever_the_guidance() -> None:
    pipe = zoo.load("emoji-sd-4")
    rows: list[int] = []
    pipe.unet.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    strong = image(pipe, guidance_scale=9.0)
    assert rows == [1, 1, 1, 1]
    np.testing.assert_array_equal(image(pipe, guidance_scale=1.0), strong)


def test_merging_applies_and_comes_off() -> None:
    pipe = zoo.load("emoji-sd-4")
    before = image(pipe)
    with tokenmerge.merged(pipe, tokenmerge.ToMA(ratio=0.5, min_tokens=64)):
        assert not np.array_equal(image(pipe), before)
    np.testing.assert_array_equal(image(pipe), before)


def test_it_is_listed_and_checked() -> None:
    assert zoo.list_models() == ["emoji-sd", "emoji-sd-4"]
    assert zoo.folder_of("emoji-sd-4") == zoo.folder_of("emoji-sd")
    folders.verify(zoo.folder_of("emoji-sd-4"))


def test_other_steps_are_refused_with_what_there_is() -> None:
    with pytest.raises(ModelLoadError, match="not trained for 3 steps; there is 'emoji-sd' with steps=4"):
        zoo.load("emoji-sd", steps=3)


def test_without_the_lora_it_is_not_in_the_installation(weights: Path, tmp_path: Path, monkeypatch: Any) -> None:
    shutil.copytree(weights, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "emoji-sd" / "4-steps")
    monkeypatch.setattr(folders, "WEIGHTS", tmp_path)
    assert zoo.list_models() == ["emoji-sd"]
    with pytest.raises(ModelLoadError, match="weights of 'emoji-sd-4' are not in this installation"):
        zoo.load("emoji-sd", steps=4)
