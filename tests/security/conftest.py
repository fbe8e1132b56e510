"""A pipeline on disk that a test may make harmful, and a file that only its code would write."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """What would fill the machine's memory fails instead."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2 * 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def model(saved_pipeline: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_pipeline, tmp_path / "model"))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Exists once code of a stranger has run."""
    return tmp_path / "ran"
