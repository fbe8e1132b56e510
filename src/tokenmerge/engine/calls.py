"""What a model is called with: how many samples, whether there are any, and of what shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.engine.hooked import Args, Kwargs, argument_names, given_argument, with_argument
from tokenmerge.errors import MergeRuntimeError


def call_batch(model: nn.Module, args: Args, kwargs: Kwargs) -> int:
    """How many samples a model was called with; they come first among its arguments."""
    names = argument_names(model)
    samples: Tensor = given_argument(names, args, kwargs, names[0])
    return samples.shape[0]


def refuse_nothing(args: Args, kwargs: Kwargs) -> None:
    """No model makes anything of no samples or no tokens, and says so in its own ways, none of them clear."""
    given: Any = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
    if isinstance(given, Tensor) and given.numel() == 0:
        raise MergeRuntimeError(
            f"the model was called with an input of shape {tuple(given.shape)}, which is empty: give at least one "
            f"sample, and one token."
        )


def for_counting(names: tuple[str, ...], by_value: tuple[str, ...], args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """A call's arguments without what they hold, but for those that are read `by_value`: they tell the grid."""
    shapes: tuple[Args, Kwargs] = _shapes_of(args), _shapes_of(kwargs)
    for name in by_value:
        value = given_argument(names, args, kwargs, name)
        if value is not None:
            shapes = with_argument(names, *shapes, name, value)
    if isinstance(given_argument(names, *shapes, "timestep"), int | float):
        # As a number it would be read, and every call with it be the same step.
        shapes = with_argument(names, *shapes, "timestep", torch.empty((), device="meta"))
    return shapes


def _shapes_of(value: Any) -> Any:
    """The arguments of a call with every tensor replaced by an empty one of its shape: nothing is kept alive."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_shapes_of(item) for item in value)
    if isinstance(value, dict):
        return {key: _shapes_of(item) for key, item in value.items()}
    return value
