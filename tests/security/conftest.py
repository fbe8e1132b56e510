"""A pipeline on disk that a test may make harmful, and a file that only its code would write."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmerge.runtime.tiny_random import build_tiny_random


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """What would fill the machine's memory fails instead."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2 * 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random pipeline as save_pretrained writes it. Not to be changed: `model` is."""
    folder = tmp_path_factory.mktemp("security") / "saved"
    build_tiny_random().save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Exists once code of a stranger has run."""
    return tmp_path / "ran"
