"""What a loop of one's own does with the model's outputs: found by looking at the next step's input.

For loops whose number of steps is known and whose sampler is not. Three kinds are distinguished:

- The image moves along the outputs, in proportion to the timestep (Euler's method, in models of flow): then the effect
  of each step is known, and skipped steps are corrected (engine/forecast.py).
- It moves by what the model was given and has returned at this step and the one before, in another way (DDIM, Heun's
  method, samplers of several steps): skipped steps are predicted and not corrected.
- It moves by something else, noise that is added: that cannot be forecast, so fewer steps are skipped, as for
  pipelines with such samplers.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import torch
from torch import Tensor

from tokenmerge.engine.schedule import Timeline
from tokenmerge.engine.skipped_steps import FEWEST_UNCORRECTED
from tokenmerge.ops.host import read_back

# How much of a move may stay unexplained, and by how much its length may differ from that of its step.
UNEXPLAINED = 0.02
OTHER_PACE = 0.05
# How far a timestep may lie from where those before it say, in steps. Some loops round theirs to whole numbers.
ASTRAY = 0.1
# On a GPU the host waits to look, so it looks at the first moves alone.
LOOKED_AT = 3
# Samples of one call may be guidance branches of one image, in this many parts.
PARTS = (2, 3)


class OwnLoop:
    """Follows the steps of one image."""

    def __init__(self, steps: int) -> None:
        self.timeline: Timeline | None = Timeline(steps)  # None once it is of no use
        self._times: list[float] = []
        self._inputs: Tensor | None = None
        self._outputs: list[Tensor] = []  # of this step, one for each call
        self._outputs_before: list[Tensor] = []
        self._straight = True
        self._pace: float | None = None  # how far the image moves along the outputs, for a timestep less by one

    def begin_step(self, timestep: float | None, inputs: Tensor) -> Timeline | None:
        """Take in the first call of a step; returns what is known of the image's steps now."""
        moved_from, self._inputs = self._inputs, inputs.detach().clone()
        if timestep is None or self.timeline is None:
            return self._unknown()
        self._times.append(timestep)
        if moved_from is not None:
            self._judge(moved_from)
        self._outputs_before, self._outputs = self._outputs, []
        return self.timeline

    def take(self, output: Tensor) -> None:
        """Take in what a call returns, computed or forecast."""
        if self.timeline is not None and self._looks:
            self._outputs.append(output.detach().clone())

    @property
    def _looks(self) -> bool:
        assert self._inputs is not None
        return self._inputs.device.type == "cpu" or len(self._times) <= LOOKED_AT + 1

    def _unknown(self) -> Timeline | None:
        if self.timeline is not None:
            self._give_up(self.timeline)
        return self.timeline

    def _judge(self, moved_from: Tensor) -> None:
        assert self.timeline is not None
        assert self._inputs is not None
        if not self._straight and not self._looks:
            return
        if self._straight and self._is_straight(moved_from):
            self.timeline = dataclasses.replace(self.timeline, effects=self._effects())
            return
        if self._straight:
            self._give_up(self.timeline)
        if self.timeline is None:
            return
        known = [moved_from, *self._outputs, *self._outputs_before]
        explained = _explained(self._inputs, moved_from, known, self._outputs)
        if explained is not None and explained[0] > UNEXPLAINED:
            self.timeline = None  # noise is added

    def _give_up(self, timeline: Timeline) -> None:
        """No step is corrected from here on; of few steps, as few are skipped as without their number."""
        self._straight = False
        # Methods like Heun's call the model twice with each timestep, but for the first.
        twice = len(self._times) > 1 and self._times[-1] == self._times[-2]
        count = 2 * timeline.count - 1 if twice else timeline.count
        self.timeline = None if count < FEWEST_UNCORRECTED else Timeline(count, corrects=False)

    def _is_straight(self, moved_from: Tensor) -> bool:
        """Whether the last step moved the image along its outputs, as far as its share of the timesteps says."""
        before, now = self._times[-2:]
        assert self._inputs is not None
        expected = self._time_at(len(self._times) - 1, len(self._times) - 2)
        if not now < before or (expected is not None and abs(now - expected) > ASTRAY * (before - now)):
            return False
        if not self._looks:
            return True
        explained = _explained(self._inputs, moved_from, self._outputs, self._outputs)
        if explained is None or explained[0] > UNEXPLAINED:
            return False
        pace = explained[1] / (before - now)
        first, self._pace = self._pace, pace if self._pace is None else self._pace
        return first is None or abs(pace - first) <= OTHER_PACE * abs(first)

    def _effects(self) -> tuple[float, ...]:
        """How far each step goes: what the loop has shown, and the same curve to 0."""
        assert self.timeline is not None
        shown = len(self._times) - 1
        ahead = [self._time_at(step, shown) or 0.0 for step in range(shown + 1, self.timeline.count + 1)]
        times = [*self._times, *ahead]
        return tuple(before - after for before, after in pairwise(times))

    def _time_at(self, step: int, shown: int) -> float | None:
        """The timestep of a step from the first and another one. None if that is none.

        Timesteps fall evenly to 0, or evenly and then shifted: all on a curve a u / (1 + b u), of which u falls evenly.
        """
        assert self.timeline is not None
        count, first = self.timeline.count, self._times[0]
        if not 0 < shown < count:
            return None
        even, time = 1 - shown / count, self._times[shown]
        bend = (first * even - time) / (even * (time - first))
        left = max(1 - step / count, 0.0)
        return first * (1 + bend) * left / (1 + bend * left) if bend > -1 else None


def _explained(
    inputs: Tensor, moved_from: Tensor, known: list[Tensor], outputs: list[Tensor]
) -> tuple[float, float] | None:
    """How much of an image's move is no sum of what is known, as a share of it; and the weights of outputs in that sum.

    None if their shapes do not allow to say. Guidance weighs outputs of several calls, or of several parts of a call,
    so each sample has its own weights. Those of the outputs add up to how far it moved along them.
    """
    channels = min(tensor.shape[1] for tensor in (inputs, *known)) if known else 0
    tensors = [tensor[:, :channels].float() for tensor in (inputs, moved_from, *known)]
    if not channels or len({tensor.shape for tensor in tensors}) > 1 or inputs.is_meta:
        return None
    move = tensors[0] - tensors[1]
    of_outputs = [any(each is output for output in outputs) for each in known]
    columns = [(column, is_output) for column, is_output in zip(tensors[2:], of_outputs, strict=True)]
    samples = len(inputs)
    rolled = [
        (column.roll(samples // parts * turn, 0), is_output)
        for column, is_output in columns
        for parts in PARTS
        for turn in range(1, parts)
        if samples % parts == 0 and is_output
    ]
    # Outputs of neighbouring steps are so alike that their products need the precision.
    precise = torch.float32 if inputs.device.type == "mps" else torch.float64
    stacked = torch.stack([column for column, _ in (*columns, *rolled)] + [move], 1).flatten(2).to(precise)
    lengths = stacked.norm(dim=2, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    unit = stacked / lengths
    noise = torch.finfo(inputs.dtype).eps * tensors[1].flatten(1).norm(dim=1)  # that rounding leaves in the inputs
    read = torch.cat([unit @ unit.mT, lengths, noise[:, None, None].expand(-1, stacked.shape[1], -1)], dim=2)
    found = torch.tensor(read_back(read), dtype=torch.float64)
    products, scales, rounding = torch.split(found, [stacked.shape[1], 1, 1], dim=2)
    among, with_move = products[:, :-1, :-1], products[:, :-1, -1:]
    weights = torch.linalg.pinv(among, rtol=1e-9, hermitian=True) @ with_move
    left = (1 - (with_move * weights).sum((1, 2))).clamp_min(0).sqrt() - (rounding / scales)[:, -1, 0]
    chosen = torch.tensor([is_output for _, is_output in (*columns, *rolled)], dtype=torch.float64)
    along = (weights * scales[:, -1:] / scales[:, :-1])[..., 0] @ chosen
    return float(left.max()), float(along.mean())
