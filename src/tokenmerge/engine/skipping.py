"""Carries out skipped steps: answers for the whole model with a forecast, and has the next computed step make it good.

A forward hook cannot keep a module from running, so the model's `forward` is put behind this object while steps are
skipped. It calls the forward that was there, whichever that is, and is taken away with everything else.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.engine.forecast import CleanImage, Forecast, Point
from tokenmerge.engine.own_loop import OwnLoop
from tokenmerge.engine.schedule import Kind, Step, Timeline
from tokenmerge.engine.skipped_steps import FEWEST_STEPS
from tokenmerge.ops.compiling import outside_compile

# The number of steps of an image that begins at a timestep, and the effect of each (Timeline); None if not known.
TimelineOf = Callable[[float | None], tuple[int, tuple[float, ...] | None] | None]


class Skipping:
    """Stands in front of a model's forward."""

    def __init__(self, model: nn.Module, timeline_of: TimelineOf | None) -> None:
        self._model = model
        self._timeline_of = timeline_of
        self.forward_before: Any = None  # an offloader or a cache may have put one there
        self._forecasts: list[Forecast] = []  # one for each guidance branch
        self._form: Any = None  # an output as the model returns it, for its type alone
        self._dtype = torch.float32  # of its tensor
        self._answer: Any = None
        self._timeline: Timeline | None = None
        self._own_loop: OwnLoop | None = None  # where somebody says how many steps there are, and no more
        # The branch and step of the call that runs, and how its clean image is found if that is what is forecast.
        self._computes: tuple[int, Point, CleanImage | None] | None = None

    @property
    def counts_steps(self) -> bool:
        """Whether anybody says how many steps an image has."""
        return self._timeline_of is not None

    def attach(self) -> None:
        self.forward_before = vars(self._model).get("forward")
        # Bound to nothing but this object, so that a copy of the model has a copy of it.
        vars(self._model)["forward"] = self

    def detach(self) -> None:
        self.begin_image(None)
        # Somebody may have wrapped this object since: it then goes on handing calls through.
        if vars(self._model).get("forward") is not self:
            return
        del vars(self._model)["forward"]
        if self.forward_before is not None:
            vars(self._model)["forward"] = self.forward_before

    # -- in place of forward -----------------------------------------------------------------------------------------

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._original)

    @property
    def _original(self) -> Any:
        return self.forward_before or type(self._model).forward.__get__(self._model)  # type: ignore[attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._take_answer()
        if answer is not None:
            return answer
        if self.forward_before is not None:
            return self.forward_before(*args, **kwargs)
        # Not as a bound method: after a break in its graph torch.compile looks that up on the model, and finds this.
        return type(self._model).forward(self._model, *args, **kwargs)

    @outside_compile
    def _take_answer(self) -> Any:
        answer, self._answer = self._answer, None
        return answer

    # -- what the session says ---------------------------------------------------------------------------------------

    def begin_image(self, first_timestep: float | None) -> Timeline | None:
        """Forget the last image; returns what the sampler says about the steps of this one."""
        self._forecasts.clear()
        self._form = self._answer = self._computes = None
        found = None if self._timeline_of is None else self._timeline_of(first_timestep)
        self._timeline = None if found is None else Timeline(*found)
        self._own_loop = None
        if found is not None and found[1] is None and found[0] >= FEWEST_STEPS:
            self._own_loop = OwnLoop(found[0])
        return self._timeline

    def begin_step(self, timestep: float | None, inputs: Tensor) -> Timeline | None:
        """Take in the first call of a step; returns what is known about the steps of the image by now."""
        if self._own_loop is not None:
            self._timeline = self._own_loop.begin_step(timestep, inputs)
        return self._timeline

    def begin_call(self, branch: int, step: Step, at: Point, clean: CleanImage | None = None) -> Step:
        """Have a skipped call answered with a forecast. Returns the step as it is carried out.

        clean: forecast clean images, not outputs.
        """
        self._computes = branch, at, clean
        if step.kind is not Kind.SKIPPED:
            return step
        ready = branch < len(self._forecasts) and self._forecasts[branch].ready
        if not ready or (self._model.training and torch.is_grad_enabled()):
            return dataclasses.replace(step, kind=Kind.FULL)
        predicted = self._forecasts[branch].predict(at)
        if clean is not None:
            predicted = clean.to_output(predicted, self._dtype)
        if self._own_loop is not None:
            self._own_loop.take(predicted)
        self._computes, self._answer = None, _with_tensor(self._form, predicted)
        return step

    def end_call(self, output: Any) -> Any:
        """Take in a computed output; returns what the model is to return instead, None for the same."""
        if self._computes is None:
            return None
        (branch, at, clean), self._computes = self._computes, None
        tensor = _only_tensor(output)
        if tensor is None:  # more than an image: nothing is known about the rest at a skipped step
            self._forecasts.clear()
            return None
        while len(self._forecasts) <= branch:
            self._forecasts.append(Forecast())
        # Its type and nothing of its size.
        self._form = _with_tensor(output, tensor.detach().new_empty(0))
        self._dtype = tensor.dtype
        forecast = tensor if clean is None else clean.from_output(tensor)
        corrected = self._forecasts[branch].correct(forecast, at, self._timeline)
        if corrected is not None and clean is not None:
            corrected = clean.to_output(corrected, tensor.dtype)
        if self._own_loop is not None:
            self._own_loop.take(tensor if corrected is None else corrected)
        return None if corrected is None else _with_tensor(output, corrected)

    @property
    def cached_bytes(self) -> int:
        return sum(output.nbytes for forecast in self._forecasts for output in forecast.outputs)


def _only_tensor(output: Any) -> Tensor | None:
    """The tensor of an output, in each form that models give it; None if it holds anything else."""
    if isinstance(output, Tensor):
        return output
    values = list(output.values()) if isinstance(output, dict) else output if isinstance(output, tuple) else []
    return values[0] if len(values) == 1 and isinstance(values[0], Tensor) else None


def _with_tensor(output: Any, tensor: Tensor) -> Any:
    """The same form of output with another tensor."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, dict):  # diffusers' outputs are dictionaries and dataclasses at once
        name = next(iter(output))
        return dataclasses.replace(output, **{name: tensor}) if dataclasses.is_dataclass(output) else {name: tensor}
    return (tensor,)
