"""The ends of what can be asked for in words: empty and endless prompts, seeds beyond all bounds.

- Python: whatever diffusers makes of a prompt; merging changes nothing about that.
- Commands: an empty prompt is an error, a prompt longer than the model reads is generated with a note that says so, and
  a seed of more than 32 bits is an error that names the one it would repeat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tokenmerge as tm
from tokenmerge.cli.main import main
from tokenmerge.errors import ConfigError, UsageError
from tokenmerge.runtime.generation import LARGEST_SEED, LONGEST_PROMPT, ImageRequest, check_request
from tokenmerge.runtime.pipelines import load_pipeline
from tokenmerge.runtime.tiny_random import build_tiny_random

SMALL = ("--size", "64", "--steps", "1", "--model", "tiny-random", "--device", "cpu", "--set", "min_tokens=16")


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = build_tiny_random()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("prompt", ["", " ", "word " * 20_000, "灯" * 5000, "\x00\x1b[2J\u202e"])
def test_any_prompt_is_generated_from_python(pipe: Any, prompt: str) -> None:
    with tm.merged(pipe, tm.ToMA(min_tokens=16)):
        image = pipe(prompt, width=64, height=64, num_inference_steps=1, output_type="np").images[0]
    assert image.shape == (64, 64, 3)
    assert np.isfinite(image).all()


def test_a_prompt_longer_than_the_model_reads_is_generated_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "word " * 100, *SMALL]) == 0
    assert "note: the prompt is longer than tiny-random reads, its end is not generated." in capsys.readouterr().err
    assert main(["generate", "a red apple", *SMALL]) == 0
    assert "longer" not in capsys.readouterr().err


def test_a_prompt_beyond_all_bounds_is_an_error() -> None:
    loaded = load_pipeline("tiny-random", "cpu")
    check_request(loaded, ImageRequest("x" * LONGEST_PROMPT))
    for wanted in (ImageRequest("x" * (LONGEST_PROMPT + 1)), ImageRequest("x", negative="y" * (LONGEST_PROMPT + 1))):
        with pytest.raises(UsageError, match="20,001 characters: use at most 20,000"):
            check_request(loaded, wanted)


def test_a_seed_beyond_32_bits_names_the_one_it_would_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "a cat", "--seed", str(2**63 + 5), *SMALL]) == 2
    assert "5 gives the image that this one would." in capsys.readouterr().err
    # Why it is refused: torch takes it, and reads half of it.
    noise = [torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (5, 2**63 + 5, LARGEST_SEED)]
    assert torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])
    assert main(["generate", "a cat", "--seed", str(LARGEST_SEED), *SMALL]) == 0


@pytest.mark.parametrize("method", [tm.ToMeSD, tm.ToFu])
def test_methods_take_seeds_of_32_bits_and_tell_them_apart(pipe: Any, method: Any) -> None:
    def generated(seed: int) -> Any:
        noise = torch.Generator().manual_seed(0)
        with tm.merged(pipe, method(seed=seed, min_tokens=16)):
            return pipe("a cat", width=64, height=64, num_inference_steps=1, generator=noise, output_type="np").images

    assert np.array_equal(generated(LARGEST_SEED), generated(LARGEST_SEED))
    assert not np.array_equal(generated(LARGEST_SEED), generated(0))
    for seed in (2**32, 2**63, 10**40):
        with pytest.raises(ConfigError, match="larger ones would repeat smaller ones"):
            method(seed=seed)
