"""Settings for all tests: one thread each, for they run side by side, and a fixed seed."""

from __future__ import annotations

import os
from pathlib import Path

# Nothing may leave the machine, whatever a test loads.
os.environ["HF_HUB_OFFLINE"] = "1"
# Some virtual machines claim AMX, which half precision is multiplied with, and die at its first instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same randomness, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def saved_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random pipeline as save_pretrained writes it. A test that changes it copies it first."""
    from tokenmerge.runtime.tiny_random import build_tiny_random

    folder = tmp_path_factory.mktemp("pipeline") / "saved"
    build_tiny_random().save_pretrained(folder)
    return folder
