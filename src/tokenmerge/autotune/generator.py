"""What makes images for tune and compare: a pipeline, or a function of the user's own around any model."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tokenmerge.api import Handle, denoisers_of
from tokenmerge.config.checks import check_whole
from tokenmerge.engine.arguments import shapes_of_call
from tokenmerge.engine.clock import Clock as TimestepReader
from tokenmerge.errors import ConfigError, UnsupportedModelError, hint
from tokenmerge.models import family_of
from tokenmerge.models.arguments import argument_names, named_arguments
from tokenmerge.runtime.generation import generate
from tokenmerge.runtime.timing import Clock

Pair = tuple[Any, int]  # a prompt and a seed
# (prompt, seed, **options) -> an image, an array or a tensor. The prompt may be anything: a label, or None.
Generate = Callable[..., Any]


class PipelineGenerator:
    """A diffusers pipeline."""

    steps: int | None = None  # its scheduler says how many an image has

    def __init__(self, pipe: Any, options: dict[str, Any]) -> None:
        denoisers_of(pipe)  # says in a sentence what is neither a pipeline nor a model
        if not hasattr(pipe, "set_progress_bar_config"):
            raise UnsupportedModelError(
                f"{type(pipe).__name__} generates no images by itself: give the pipeline it is in, or generate=, a "
                f"function of a prompt and a seed that returns an image or a tensor."
            )
        check_options(pipe, options)
        self.pipe, self.options = pipe, options

    def warm_up(self, prompt: Any, seed: int) -> None:
        """The first call finds everything cold."""
        check_prompt(prompt)
        generate(self.pipe, prompt, seed, **{**self.options, "num_inference_steps": 1})

    def timed(self, prompt: Any, seed: int) -> tuple[Any, float]:
        check_prompt(prompt)
        return generate(self.pipe, prompt, seed, **self.options)

    def work(self, handle: Handle) -> float:
        """Multiply-adds with what is applied, as a share of those without."""
        known = "height" in self.options and "width" in self.options
        size = (self.options["height"], self.options["width"]) if known else None
        return share_of_work(handle, size, self.options.get("num_inference_steps"))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """One bar is enough: the pipeline's own is put back as it was."""
        before = getattr(self.pipe, "_progress_bar_config", None)
        try:
            yield
        finally:
            self.pipe.set_progress_bar_config(**(before or {}))


def check_options(pipe: Any, options: dict[str, Any]) -> None:
    """Refuse what the pipeline's call does not take, before anything is generated."""
    if "num_inference_steps" in options:
        check_whole("num_inference_steps", options["num_inference_steps"], least=1)
    parameters = inspect.signature(pipe.__call__).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            advice = hint(name, parameters, "its documentation lists its arguments.")
            raise ConfigError(f"{type(pipe).__name__} takes no argument {name!r}: {advice}")


def check_prompt(prompt: Any) -> None:
    """None stands for a prompt that is given otherwise, such as by `prompt_embeds`."""
    if prompt is not None and not isinstance(prompt, str | list):
        raise ConfigError(f"a prompt is {prompt!r}: a pipeline takes a text, such as 'red apple'.")


class FunctionGenerator:
    """A function that generates with a model of any kind, unmerged or merged, as the model is at the moment."""

    def __init__(self, model: Any, function: Generate, options: dict[str, Any]) -> None:
        if not callable(function):
            raise ConfigError(
                f"generate is {function!r}: it takes a function of a prompt and a seed that returns an image, an array "
                f"or a tensor."
            )
        self.models, self.function, self.options = denoisers_of(model), function, options
        self._has_scheduler = hasattr(model, "scheduler")
        self._clock = Clock(next(self.models[0].parameters()).device)
        self._calls: list[list[Any]] = [[] for _ in self.models]  # of one generation
        self._timesteps: list[float | None] = []  # of those calls

    @property
    def steps(self) -> int | None:
        """How many steps an image has, for `merged`, as counted by `warm_up`; None if a scheduler says it."""
        return None if self._has_scheduler else self._counted()

    @property
    def calls_per_step(self) -> int:
        """Calls of the model at each step: two if guidance is a second call."""
        return max(1, max(map(len, self._calls)) // self._counted())

    def _counted(self) -> int:
        if None in self._timesteps:
            return max(map(len, self._calls))
        return steps_in([timestep for timestep in self._timesteps if timestep is not None])

    def warm_up(self, prompt: Any, seed: int) -> Any:
        """Generate once, and take note of how the models are called."""
        handles = []
        for model, calls in zip(self.models, self._calls, strict=True):
            family = family_of(model)
            names = argument_names(model)

            def note(
                module: Any, args: Any, kwargs: Any, calls: Any = calls, names: Any = names, family: Any = family
            ) -> None:
                calls.append(shapes_of_call(names, family.positions, family.timestep, args, kwargs))
                call = family.read_call((), named_arguments(module, args, kwargs))
                self._timesteps.append(TimestepReader().read(call.timestep, family.timestep_unit).value)

            handles.append(model.register_forward_pre_hook(note, with_kwargs=True))
        try:
            made = self.function(prompt, seed, **self.options)
        finally:
            for handle in handles:
                handle.remove()
        if not any(self._calls):
            raise ConfigError("generate never called the model that is to be merged: give the model that it uses.")
        return made

    def timed(self, prompt: Any, seed: int) -> tuple[Any, float]:
        made, seconds = self._clock.timed(lambda: self.function(prompt, seed, **self.options))
        return made, seconds

    def work(self, handle: Handle) -> float:
        for session, calls in zip(handle._sessions, self._calls, strict=True):
            session.last_call = calls[0] if calls else None
        return share_of_work(handle, None, self._counted())

    @contextmanager
    def quiet(self) -> Iterator[None]:
        yield


Generator = PipelineGenerator | FunctionGenerator


def generator_of(pipe: Any, function: Generate | None, options: dict[str, Any]) -> Generator:
    return PipelineGenerator(pipe, options) if function is None else FunctionGenerator(pipe, function, options)


def pairs_of(prompts: Sequence[Any], seeds: Sequence[int]) -> list[Pair]:
    """Every prompt with every seed. One text is one prompt, although Python takes it for a row of letters.

    >>> pairs_of("red apple", [0, 1])
    [('red apple', 0), ('red apple', 1)]
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    for name, given, example in (("prompts", prompts, '["red apple"]'), ("seeds", seeds, "[0, 1]")):
        if not isinstance(given, Iterable):
            raise ConfigError(f"{name} is {given!r}: it takes a list, such as {example}.")
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    if not pairs:
        raise ConfigError("there is no prompt, or no seed: give a handful of prompts like those you will generate.")
    return pairs


def steps_in(timesteps: list[float]) -> int:
    """How many steps the first image of a loop has: guidance branches share timesteps, and a larger one ends it.

    >>> steps_in([0.9, 0.9, 0.5, 0.5, 0.1, 0.1, 0.9, 0.9])
    3
    """
    steps = 1
    for before, after in itertools.pairwise(timesteps):
        if after > before:
            break
        steps += after < before
    return steps


def share_of_work(handle: Handle, size: tuple[int, int] | None, steps: int | None) -> float:
    with torch.no_grad():
        counted = [model.multiply_adds for model in handle.explain(size=size, steps=steps).models]
    return sum(work.average for work in counted) / sum(work.unmerged for work in counted)
