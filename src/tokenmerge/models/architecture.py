"""What it takes to build a model that people use, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """A denoising model that people use, described well enough to build it."""

    title: str  # what people call it
    class_name: str  # in diffusers
    pixels: int  # side of the square image it was made for
    config: dict[str, Any]
    # The config entries that `blocks` sets; empty where blocks cannot be cut, as in a UNet.
    depth: tuple[str, ...] = ()
