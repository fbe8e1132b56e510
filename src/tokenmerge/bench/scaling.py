"""`tokenmerge bench scaling`: how one block's cost grows with the image, and what part of it merging itself is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from tokenmerge.bench.blocks import observe_blocks
from tokenmerge.bench.contenders import Contender, Merged, contenders
from tokenmerge.bench.instrument import TimedConfig
from tokenmerge.bench.one_block import OneBlockFamily
from tokenmerge.bench.result import Measurement
from tokenmerge.bench.schedule import shortened
from tokenmerge.bench.subject import Subject, subject_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.session import Session
from tokenmerge.runtime.timing import Clock, Stopwatch


class ScalingTrial:
    """One contender at one image size."""

    def __init__(self, subject: Subject, contender: Contender, measurement: Measurement) -> None:
        self.subject = subject
        self.contender = contender
        self.measurement = measurement
        self._clock = Clock(subject.device)
        self._visited = False

    def visit(self) -> None:
        times: dict[str, float] = {}
        overhead: dict[str, float] = {}
        stopwatch = Stopwatch(self.subject.device)
        phases = self.contender.schedule.phases
        with self._installed(stopwatch):
            if not self._visited:
                for step in range(1, len(phases) + 1):
                    self.subject.call(step)
                self._visited = True
            stopwatch.read()
            for step, phase in enumerate(phases):
                times[phase] = self._clock.seconds(lambda step=step: self.subject.call(step))  # type: ignore[misc]
                overhead[phase] = sum(stopwatch.read().values())
        self.measurement.add(times, overhead if isinstance(self.contender, Merged) else {})

    @contextmanager
    def _installed(self, stopwatch: Stopwatch) -> Iterator[None]:
        """With a stopwatch on every merge, so that the full step and its overhead come from the very same call."""
        if not isinstance(self.contender, Merged):
            with self.contender.installed(self.subject):
                yield
            return
        timed: Any = TimedConfig(shortened(self.contender.config), stopwatch)
        session = Session(self.subject.model, self.subject.family, cast(MergeConfig, timed))
        session.attach()
        try:
            yield
        finally:
            session.detach()


def scaling_trials(
    model: nn.Module,
    pixels: Sequence[int],
    methods: Sequence[str],
    ratios: Sequence[float],
    batch: int,
    earlier: Sequence[Measurement] = (),
) -> list[ScalingTrial]:
    """A trial for each method and ratio at each size; all share one block."""
    known = {measurement.key: measurement for measurement in earlier}
    trials = []
    for side in pixels:
        subject = subject_of(model, (side, side), batch, OneBlockFamily())
        with torch.no_grad():
            seen = observe_blocks(model, subject.family, lambda subject=subject: subject.call(0))  # type: ignore[misc]
        case = {"pixels": side, "tokens": next(iter(seen.values())).tokens}
        for contender in contenders(methods, ratios, subject, seen, limit=False):
            measurement = Measurement(
                contender.method,
                contender.ratio,
                case,
                settings=contender.settings(),
                schedule=dict(contender.schedule.counts),
            )
            trials.append(ScalingTrial(subject, contender, known.get(measurement.key, measurement)))
    return trials
