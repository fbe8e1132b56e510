"""What a command left behind, and words that keep it small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SMALL = ("--size", "256", "--steps", "2", "--model", "tiny-random", "--device", "cpu")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
