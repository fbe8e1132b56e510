"""The same seed gives the same image: in another process, after other generations, and with others in its batch."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tokenmerge as tm
from tokenmerge.runtime.tiny_random import build_tiny_random

CONFIGS: dict[str, tm.MergeConfig] = {
    "toma": tm.ToMA(ratio=0.75, min_tokens=16),
    "toma-stack": tm.ToMA(scope="stack", min_tokens=16),
    "tile-mean": tm.TileMean(scope="site", correction=tm.FullSteps(every=2), min_tokens=16),
    "toma-random": tm.ToMA(ratio=0.75, selector="random", min_tokens=16),
    "sampled-keys": tm.SampledKeys(min_tokens=16),
    "tomesd": tm.ToMeSD(min_tokens=16),
    "tofu": tm.ToFu(min_tokens=16),
    "todo": tm.ToDo(min_tokens=16),
    "lower-bound": tm.LowerBound(min_tokens=16),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
SIDE = 128


@pytest.fixture(scope="module")
def pipe() -> Any:
    return quiet_pipeline()


def quiet_pipeline() -> Any:
    pipe = build_tiny_random()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def images(pipe: Any, prompts: list[str], seeds: list[int], side: int = SIDE) -> NDArray[np.uint8]:
    """(images, side, side, 3)."""
    noise = [torch.Generator().manual_seed(seed) for seed in seeds]
    made = pipe(prompts, width=side, height=side, num_inference_steps=3, generator=noise, output_type="np").images
    return (made * 255).round().astype(np.uint8)


def digests() -> dict[str, str]:
    """Of an image with each method."""
    torch.set_num_threads(1)
    pipe = quiet_pipeline()
    found = {}
    for name, config in CONFIGS.items():
        with tm.merged(pipe, config):
            found[name] = hashlib.sha256(images(pipe, ["a red apple"], [7]).tobytes()).hexdigest()
    return found


def test_in_a_fresh_process() -> None:
    script = "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import test_determinism as t; "
    script += "print(json.dumps(t.digests()))"
    words = [sys.executable, "-c", script, json.dumps([path for path in sys.path if path])]
    # Another order of hashes, as every process has its own.
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    there = json.loads(done.stdout.splitlines()[-1])
    assert there == digests()
    assert len(set(there.values())) == len(CONFIGS)  # or the methods would not have taken part


@every_config
def test_after_other_generations(pipe: Any, config: tm.MergeConfig) -> None:
    with tm.merged(pipe, config):
        first = images(pipe, ["a red apple"], [7])
        images(pipe, ["a boat", "a dog"], [1, 2], side=192)
        with pytest.raises(RuntimeError, match="in the middle"):
            pipe("stopped", width=SIDE, height=SIDE, num_inference_steps=3, callback_on_step_end=_stop)
        again = images(pipe, ["a red apple"], [7])
    assert np.array_equal(first, again)


def _stop(*_: Any) -> dict[str, Any]:
    raise RuntimeError("in the middle")


@every_config
def test_with_others_in_its_batch(pipe: Any, config: tm.MergeConfig) -> None:
    """To the last bit but one: sums are rounded as the whole batch is laid out in memory."""
    with tm.merged(pipe, config):
        alone = images(pipe, ["a red apple"], [7])[0]
        among = images(pipe, ["a boat", "a red apple", "a dog"], [1, 7, 3])[1]
        other = images(pipe, ["a red apple"], [8])[0]
    difference = np.abs(alone.astype(int) - among)
    assert difference.max() <= 1
    assert np.abs(alone.astype(int) - other).max() > 10


@every_config
def test_after_being_taken_out_and_put_in_again(pipe: Any, config: tm.MergeConfig) -> None:
    unmerged = images(pipe, ["a red apple"], [7])
    with tm.merged(pipe, config):
        first = images(pipe, ["a red apple"], [7])
    assert np.array_equal(images(pipe, ["a red apple"], [7]), unmerged)
    with tm.merged(pipe, config):
        assert np.array_equal(images(pipe, ["a red apple"], [7]), first)
