"""Fixtures of the evaluation's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import EXPERIMENT, PROMPTS


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
