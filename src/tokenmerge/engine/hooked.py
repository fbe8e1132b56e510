"""What hooks see of a module: its arguments, its output, and the tokens in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Pieces = tuple[Tensor | None, Tensor, Tensor | None]

# `torch.compiler.disable`, but it loads the compiler when first called and not at import, which takes a second.
outside_compile = _disable_dynamo


def joined(*pieces: Tensor | None) -> Tensor:
    present = [piece for piece in pieces if piece is not None]
    return present[0] if len(present) == 1 else torch.cat(present, dim=1)


def tokens_of(args: Args, kwargs: Kwargs) -> Tensor:
    tokens: Tensor = args[0] if args else kwargs["hidden_states"]
    return tokens


def with_tokens(args: Args, kwargs: Kwargs, tokens: Tensor) -> tuple[Args, Kwargs]:
    return ((tokens, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": tokens})


def with_changed(output: Any, positions: tuple[int | None, ...], change: Callable[[Tensor, int], Tensor]) -> Any:
    """A module's output with its tokens changed: all of it, or the items at `positions` of a tuple.

    change: called with tokens and where they stand, 0 for an output that is no tuple.
    """
    if isinstance(output, Tensor):
        return change(output, 0)
    return tuple(change(item, index) if index in positions else item for index, item in enumerate(output))


def argument_names(module: nn.Module) -> tuple[str, ...]:
    """What the positional arguments of a module's forward are called.

    As its class has it: diffusers' caches put another in its place, which in releases before 0.39 tells no names.
    """
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    _self, *parameters = inspect.signature(type(module).forward).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in positional)


def given_argument(names: tuple[str, ...], args: Args, kwargs: Kwargs, name: str) -> Any:
    """An argument that may be given by position or by name."""
    return args[names.index(name)] if name in names[: len(args)] else kwargs.get(name)


def with_argument(names: tuple[str, ...], args: Args, kwargs: Kwargs, name: str, value: Any) -> tuple[Args, Kwargs]:
    if name in names[: len(args)]:
        position = names.index(name)
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, name: value}


def drop_hooks(module: nn.Module, owner: object) -> None:
    """Take out hooks that were never registered here: PyTorch's quantisation copies them onto a layer's replacement."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is owner]:
            del hooks[key]
