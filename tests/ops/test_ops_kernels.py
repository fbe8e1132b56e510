"""Fused kernels without a GPU: their values in Triton's interpreter, and whether they compile for GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmerge.ops.kernels import takes_kernels

pytest.importorskip("triton")  # there is none for macOS and Windows

FOLDER = Path(__file__).parent / "kernels"


def run(script: str, **environment: str) -> Any:
    """What a program prints last, as JSON. One for each, because Triton reads its environment when it is imported."""
    command = [sys.executable, str(FOLDER / script)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_give_what_plain_pytorch_gives() -> None:
    found = run("interpreted.py", TRITON_INTERPRET="1")
    half = found["differences"].pop("mean in half precision")
    assert max(found["differences"].values()) < 1e-5, found
    assert half < 1e-3  # of the largest value: what half precision can tell apart
    assert found["wrong"] == 0


def test_kernels_compile_for_gpus_and_keep_to_their_registers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run("compiled.py", TRITON_CACHE_DIR=str(tmp_path))
    with capsys.disabled():
        for name, targets in found.items():
            print(
                f"\n{name}: " + ", ".join(f"{target} {use['registers']} registers" for target, use in targets.items())
            )
    for targets in found.values():
        assert set(targets) == {"sm_80", "sm_89", "sm_90"}
        assert all(use["spilled"] == 0 and use["registers"] <= 168 for use in targets.values()), found


def test_tensors_without_a_gpu_take_no_kernels() -> None:
    assert not takes_kernels(torch.zeros(1))
