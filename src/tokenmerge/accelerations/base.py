"""What every acceleration is: it changes a pipeline for the length of a `with` block and leaves no trace."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tokenmerge.errors import ConfigError


@dataclass(frozen=True)
class Generation:
    """What is known of a generation before it begins.

    Args:
        steps: Denoising steps that will run.
        calls_per_step: Calls of the denoiser at each step. 2 if guidance is a second call instead of a larger batch.
    """

    steps: int
    calls_per_step: int = 1


class Acceleration(ABC):
    """Something that makes a pipeline generate faster, and can be removed again."""

    ours: bool = False  # one of this package's methods, not a rival
    adapts: bool = False  # how much is computed depends on the image

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that was chosen, as plain JSON values."""

    @abstractmethod
    def applied(self, pipe: Any, generation: Generation) -> AbstractContextManager[Any]:
        """The pipeline with this acceleration for one generation; exactly the pipeline that came in afterwards."""

    def steps_of(self, steps: int) -> int:
        """The number of steps to run if `steps` are asked for."""
        return steps

    def misfit(self, pipe: Any) -> str | None:
        """Why it cannot work on this pipeline, as a clause; None if it can."""
        return None

    def prepared(self, pipe: Any, generation: Generation, generate: Callable[[int], object]) -> Acceleration:
        """The same with what it has to measure on the model before its first generation.

        Args:
            generate: Generates one image in the given number of steps with whatever is applied to the pipeline.
        """
        return self


def refuse_misfit(name: str, acceleration: Acceleration, pipe: Any) -> None:
    """Raise if an acceleration cannot work on a pipeline."""
    reason = acceleration.misfit(pipe)
    if reason is not None:
        raise ConfigError(f"{name} does not fit {type(pipe).__name__}: {reason}. Leave it out for this model.")


def require_package(module: str, package: str) -> None:
    """Raise if an optional package is missing."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this needs the package {package}: pip install 'tokenmerge[peers]'.")
