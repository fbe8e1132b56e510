"""Our own methods: a config, or a preset, which is resolved for the model it is applied to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tokenmerge.accelerations.base import Acceleration, Generation
from tokenmerge.api import merged
from tokenmerge.config.base import MergeConfig


@dataclass(frozen=True)
class Merging(Acceleration):
    """Token merging with one config."""

    config: MergeConfig
    ours = True

    def settings(self) -> dict[str, Any]:
        return self.config.to_dict()

    def applied(self, pipe: Any, generation: Generation) -> AbstractContextManager[Any]:
        return merged(pipe, self.config, steps=_steps(pipe, generation))


@dataclass(frozen=True)
class Preset(Acceleration):
    """A preset by name, as `tokenmerge.apply(pipe, name)` applies it.

    Args:
        preset: "quality", "balanced" or "fast".
    """

    preset: str
    ours = True

    def settings(self) -> dict[str, Any]:
        return {"preset": self.preset}

    def applied(self, pipe: Any, generation: Generation) -> AbstractContextManager[Any]:
        return merged(pipe, self.preset, steps=_steps(pipe, generation))


def _steps(pipe: Any, generation: Generation) -> int | None:
    """The number of steps that a bare model has to be given: a pipeline's scheduler says more than that."""
    return None if hasattr(pipe, "scheduler") else generation.steps
