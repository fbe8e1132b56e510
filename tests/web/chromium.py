"""Finds the browser that `make browser` installs."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "there is no chromium: `make browser` installs Debian's"


def find_chromium() -> str | None:
    """The program; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
