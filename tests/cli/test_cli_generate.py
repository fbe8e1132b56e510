"""`generate`: one image, the same for the same seed, and what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_runs import SMALL, Run
from PIL import Image

import tokenmerge as tm
from tokenmerge.runtime.generation import ImageRequest
from tokenmerge.runtime.pipelines import load_pipeline


def pixels(file: Path | str) -> np.ndarray:
    return np.asarray(Image.open(file))


def test_writes_the_image_that_python_would_generate(run: Run, tmp_path: Path) -> None:
    outcome = run("generate", "a cat", *SMALL, "--seed", "7", "--ratio", "0.75", "--set", "region=stripe")
    assert outcome.code == 0
    loaded = load_pipeline("tiny-random", "cpu")
    with tm.merged(loaded.pipe, tm.ToMA(ratio=0.75, region="stripe")):
        expected, _ = loaded.generate(ImageRequest("a cat", seed=7, steps=2, size=(256, 256)))
    assert (pixels(tmp_path / "image.png") == np.asarray(expected)).all()


def test_a_random_model_says_that_it_is_one(run: Run) -> None:
    outcome = run("generate", "a cat", *SMALL)
    assert "random weights: its images mean nothing" in outcome.err
    assert "256 x 256 px, balanced, " in outcome.out


def test_seeds_and_merging_change_the_image(run: Run) -> None:
    for name, words in {
        "first": ("--seed", "1"),
        "again": ("--seed", "1"),
        "other": ("--seed", "2"),
        "whole": ("--seed", "1", "--method", "none"),
    }.items():
        assert run("generate", "a cat", *SMALL, *words, "--out", f"{name}.png").code == 0
    assert (pixels("first.png") == pixels("again.png")).all()
    assert (pixels("first.png") != pixels("other.png")).any()
    assert (pixels("first.png") != pixels("whole.png")).any()


def test_json_is_all_of_stdout_and_also_in_the_png(run: Run) -> None:
    words = ("--size", "256x128", "--seed", "3", "--negative", "dogs", "--guidance", "4", "--json", "--out", "here/")
    outcome = run("generate", "a cat", *SMALL, *words)
    said = json.loads(outcome.out)
    assert said["size"] == [256, 128]
    assert said["seed"] == 3
    assert said["model"] == {"name": "tiny-random", "random_weights": True, "device": "cpu", "dtype": "float32"}
    assert said["config"]["method"] == "SampledKeys"
    assert said["seconds"] > 0
    with Image.open(said["file"]) as image:
        assert image.size == (256, 128)
        carried = json.loads(image.text["tokenmerge"])  # type: ignore[attr-defined]
    assert carried == {key: said[key] for key in carried}
    assert tm.MergeConfig.from_dict(carried["config"]) == tm.SampledKeys(outliers=64, step_speedup=2.0)


@pytest.mark.parametrize("name", ["image.jpg", "image.webp"])
def test_other_image_types(run: Run, name: str) -> None:
    assert run("generate", "a cat", *SMALL, "--steps", "1", "--out", name).code == 0
    with Image.open(name) as image:
        assert image.size == (256, 256)


def test_a_model_from_a_folder(run: Run, saved_pipeline: Path) -> None:
    assert run("generate", "a cat", *SMALL, "--out", "code.png").code == 0
    outcome = run("generate", "a cat", *SMALL, "--model", str(saved_pipeline), "--out", "folder.png")
    assert outcome.code == 0
    assert (pixels("code.png") == pixels("folder.png")).all()
