"""A small experiment with the tiny random pipeline: 128 px, two steps, a few prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

PROMPTS = ["a lighthouse at night", "a red <b>bicycle</b> & a cat", "three apples, a pear", "a ship in a storm"]

EXPERIMENT = """
name = "small"
ratios = [0.5]

[model]
name = "tiny-random"
threads = 1

[prompts]
file = "prompts.txt"

[seeds]
values = [7]

[image]
width = 128
height = 128
steps = 2
guidance = 2.0

[timing]
warmup = 1
warmup_steps = 1

[[variants]]
name = "ToMA"
method = "toma"

[[variants]]
name = "LB"
method = "lower-bound"
ratios = [0.25, 0.5]
"""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def experiment_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small experiment, with parts of its text replaced, and its prompts."""

    def write(*replacements: tuple[str, str], prompts: list[str] = PROMPTS, more: str = "") -> Path:
        text = EXPERIMENT + more
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write
