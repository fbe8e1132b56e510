"""Finds a chromium, and installs Debian's where there is none and that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 600  # seconds for the installation


def install_chromium() -> tuple[str | None, str]:
    """The program; or None, and why there is none."""
    # Tests run in several processes, and apt in one at a time.
    with FileLock(Path(tempfile.gettempdir()) / "tokenmerge-tests-chromium.lock"):
        if (found := _found()) is not None:
            return found, ""
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            return None, "there is no chromium, and only root can install one with apt-get: install chromium"
        for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            try:
                done = subprocess.run(["apt-get", *words], capture_output=True, text=True, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                return None, f"there is no chromium, and `apt-get {words[0]}` did not end in {PATIENCE} s"
        if (found := _found()) is None:
            return None, f"there is no chromium, and apt-get could not install it: {done.stderr.strip()[-300:]}"
        return found, ""


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
