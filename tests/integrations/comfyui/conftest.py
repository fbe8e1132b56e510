"""A real ComfyUI for these tests. `make test-comfyui` runs them; in other environments they are left out."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from comfyui_home import COMFYUI, base_folder, prepare

if COMFYUI.is_dir():
    BASE = base_folder()
    prepare(BASE)
    from tokenmerge.integrations.comfyui.families import register_families

    register_families()
else:
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session", autouse=True)
def base() -> Iterator[Path]:
    """ComfyUI's folder of models, inputs and outputs."""
    yield BASE
    shutil.rmtree(BASE, ignore_errors=True)
