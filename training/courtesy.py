"""Keeps a niced training run quick on a busy machine.

Two threads that wait for each other after every operation are slower than one as soon as another program takes a
core, because the niced thread on that core hardly runs. So: one thread while others work, all when they do not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

STAT = Path("/proc/stat")


def cores_used_by_others(before: tuple[float, float], now: tuple[float, float]) -> float:
    """Cores kept busy by programs of normal priority between two readings of (clock, busy seconds)."""
    elapsed = now[0] - before[0]
    return (now[1] - before[1]) / elapsed if elapsed > 0 else 0.0


def read_busy() -> tuple[float, float]:
    """The clock, and the seconds all cores spent for programs of normal priority since boot."""
    user, _, system = STAT.read_text().split(maxsplit=4)[1:4]  # the niced share is the second figure
    return time.monotonic(), (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Courtesy:
    """Sets torch's thread count from what other programs used since the last look."""

    def __init__(self, every_seconds: float = 5.0) -> None:
        self.every = every_seconds
        self.cores = os.cpu_count() or 1
        self.active = STAT.exists() and os.nice(0) > 0  # without a nice value our own work counts as theirs
        self.last = read_busy() if self.active else (0.0, 0.0)

    def look(self) -> None:
        """Call after every step; looks at most once in `every_seconds`."""
        if not self.active or time.monotonic() - self.last[0] < self.every:
            return
        now = read_busy()
        free = self.cores - cores_used_by_others(self.last, now)
        self.last = now
        torch.set_num_threads(max(1, round(free - 0.2)))
