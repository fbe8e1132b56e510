"""Clocks: wall time on a CPU, events on CUDA, where the host runs ahead of the device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")

# One call of a small operation is shorter than the clock can distinguish from noise, so as many are timed as fill this.
LEAST_SECONDS = 0.02


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronise(self) -> None:
        """Wait until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def seconds(self, call: Callable[[], object]) -> float:
        """How long one call takes on the device."""
        return self.timed(call)[1]

    def timed(self, call: Callable[[], Result]) -> tuple[Result, float]:
        """What a call returns, and how long it takes on the device."""
        self.synchronise()
        if self.device.type == "cuda":
            start, end = _event(), _event()
            start.record()
            result = call()
            end.record()
            end.synchronize()
            return result, float(start.elapsed_time(end)) / 1000
        before = time.perf_counter()
        result = call()
        self.synchronise()
        return result, time.perf_counter() - before

    def calls_to_time(self, call: Callable[[], object]) -> int:
        """How many calls of a small operation make a span long enough to time; runs it twice, so it is warm too."""
        self.seconds(call)
        return max(1, round(LEAST_SECONDS / max(self.seconds(call), 1e-9)))

    def mean_seconds(self, call: Callable[[], object], calls: int) -> float:
        """Time per call over `calls` in a row."""

        def all_calls() -> None:
            for _ in range(calls):
                call()

        return self.seconds(all_calls) / calls


class Stopwatch:
    """Adds up the time spent in named stretches of a longer call, without making the device wait in between."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._running = False

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Time what happens inside. A lap within a lap belongs to the outer one."""
        if self._running:
            yield
            return
        self._running = True
        try:
            if self._on_cuda:
                start, end = _event(), _event()
                start.record()
                yield
                end.record()
                self._events.append((name, start, end))
            else:
                before = time.perf_counter()
                yield
                self._seconds[name] += time.perf_counter() - before
        finally:
            self._running = False

    def read(self) -> dict[str, float]:
        """Seconds under each name since the last reading. Call it only once the device is done."""
        for name, start, end in self._events:
            self._seconds[name] += start.elapsed_time(end) / 1000
        seconds = dict(self._seconds)
        self._events.clear()
        self._seconds.clear()
        return seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
