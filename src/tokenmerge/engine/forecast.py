"""What the model would return at a skipped step, from its outputs at the steps that were computed.

Predict: the last computed output, moved on along the line through the last two. Before there are two, it is that output
itself. Correct: the next computed output shows what the skipped outputs should have been, because a parabola through
three outputs now lies around them. The sampler is linear in the model's outputs, so their error is made good at that
step: its output carries the difference, scaled by how much either step changes the final image. Without that scale (an
unknown or random sampler) outputs are only predicted.

Both are weighted sums of two stored outputs and the one at hand. The weights are numbers of the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tokenmerge.engine.schedule import Timeline

STORED = 2  # outputs for each guidance branch
# How far the line is followed, in distances of the two outputs: further, and forecasts of few large steps overshoot.
FURTHEST = 0.25
# A last step that hardly changes the image would have to carry many times its own output.
LARGEST_CORRECTION = 8.0


@dataclass(frozen=True)
class Point:
    """Where an output lies: the number of its step, and its timestep if the model is given one."""

    step: int
    timestep: float | None


@dataclass(frozen=True)
class CleanImage:
    """Translates between the output of a call and the clean image that it stands for."""

    noisy: Tensor  # what the input has in it, in float32
    output_weight: float

    @classmethod
    def of(cls, inputs: Tensor, input_weight: float, output_weight: float) -> CleanImage:
        return cls(input_weight * inputs.detach().float(), output_weight)

    def from_output(self, output: Tensor) -> Tensor:
        return self._noisy_of(output) - self.output_weight * output.float()

    def to_output(self, clean: Tensor, dtype: torch.dtype) -> Tensor:
        return ((self._noisy_of(clean) - clean) / self.output_weight).to(dtype)

    def _noisy_of(self, output: Tensor) -> Tensor:
        """Without the channels behind the image's, in which some models are given a mask and an image to fill in."""
        return self.noisy[:, : output.shape[1]]


def interpolation(points: Sequence[Point], at: Point) -> tuple[float, ...]:
    """The weight of each point's output in the polynomial through all of them (Lagrange).

    >>> interpolation([Point(3, 600.0), Point(2, 700.0)], Point(4, 500.0))
    (2.0, -1.0)
    """
    places = _places([*points, at])
    *known, wanted = places
    return tuple(math.prod((wanted - other) / (here - other) for other in known if other != here) for here in known)


def _places(points: Sequence[Point]) -> list[float]:
    """Their timesteps; their numbers if two have the same one, which half precision may round to."""
    timesteps = [point.timestep for point in points if point.timestep is not None]
    if len(timesteps) == len(points) and len(set(timesteps)) == len(points):
        return timesteps
    return [float(point.step) for point in points]


def prediction(points: Sequence[Point], at: Point) -> tuple[float, ...]:
    """The weight of each of one or two points' outputs in the prediction of a later one.

    >>> prediction([Point(3, 600.0), Point(2, 700.0)], Point(4, 580.0))
    (1.2, -0.2)
    >>> prediction([Point(3, 600.0), Point(2, 700.0)], Point(4, 500.0))
    (1.25, -0.25)
    >>> prediction([Point(0, 999.0)], Point(1, 900.0))
    (1.0,)
    """
    if len(points) == 1:
        return (1.0,)
    along = min(-interpolation(points, at)[1], FURTHEST)
    return 1 + along, -along


@dataclass
class Forecast:
    """The computed outputs of one guidance branch, and how the steps skipped since were predicted."""

    points: list[Point] = field(default_factory=list)  # the newest first
    outputs: list[Tensor] = field(default_factory=list)
    skipped: list[tuple[Point, tuple[float, ...]]] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return bool(self.points)

    def predict(self, at: Point) -> Tensor:
        """The output of a skipped step."""
        weights = prediction(self.points, at)
        if not self.skipped or self.skipped[-1][0] != at:
            self.skipped.append((at, weights))
        return _weighted(weights, self.outputs)

    def correct(self, output: Tensor, at: Point, timeline: Timeline | None) -> Tensor | None:
        """Take in a computed output; returns what the sampler is to have instead, None for the output itself."""
        weights = self._correction(at, timeline)
        corrected = None if weights is None else _weighted(weights, [output, *self.outputs])
        self._store(output, at)
        return corrected

    def _correction(self, at: Point, timeline: Timeline | None) -> tuple[float, ...] | None:
        """Weights of the output at hand and of those stored."""
        if not self.skipped or timeline is None:
            return None
        around = [at, *self.points]
        total = [1.0, *(0.0 for _ in self.points)]
        for point, predicted in self.skipped:
            scale = timeline.effect_of(point.step, at.step)
            if scale is None:
                return None
            differences = zip(interpolation(around, point), (0.0, *predicted), strict=True)
            total = [sofar + scale * (should - was) for sofar, (should, was) in zip(total, differences, strict=True)]
        return tuple(total) if max(map(abs, total)) <= LARGEST_CORRECTION else None

    def _store(self, output: Tensor, at: Point) -> None:
        # A second call at this step, of a longer batch say, takes the place of the first.
        replaced = bool(self.points) and self.points[0].step == at.step
        # A copy: the loop may go on to change its own, and CUDA graphs reuse theirs.
        self.points = [at, *self.points[replaced:]][:STORED]
        self.outputs = [output.detach().clone(), *self.outputs[replaced:]][:STORED]
        self.skipped = []


def _weighted(weights: Sequence[float], outputs: Sequence[Tensor]) -> Tensor:
    """The weighted sum of outputs, in float32 if they are of half precision."""
    dtype = torch.promote_types(outputs[0].dtype, torch.float32)
    total = weights[0] * outputs[0].to(dtype)
    for weight, output in zip(weights[1:], outputs[1:], strict=True):
        total = torch.add(total, output.to(dtype), alpha=weight)
    return total.to(outputs[0].dtype)
