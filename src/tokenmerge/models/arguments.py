"""A module's arguments by name, never by position: diffusers inserts arguments from release to release."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torch import nn

from tokenmerge.errors import MergeRuntimeError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def argument_names(module: nn.Module) -> tuple[str, ...]:
    """What the positional arguments of a module's forward are called.

    Read from its class: diffusers' caches put another forward in its place, which in releases before 0.39 has no
    names.
    """
    return _names_of(_class_of(module))


def takes_argument(module: nn.Module, name: str, in_kwargs: bool) -> bool:
    """Whether a module's forward takes an argument of this name.

    in_kwargs: **kwargs count too. One that has nothing else passes on what it is given, and counts anyway.
    """
    kind = _class_of(module)
    _self, *parameters = inspect.signature(kind.forward).parameters.values()
    swallows = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    named = [parameter.name for parameter in parameters if parameter.kind not in VARIABLE]
    return name in named or (swallows and (in_kwargs or not named))


def _class_of(module: nn.Module) -> Any:
    """Its own class, past torch.compile's wrapper. Asking for an attribute that is not there costs an exception."""
    return type(module._modules.get("_orig_mod") or module)


VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


@lru_cache(maxsize=256)
def _names_of(kind: type[nn.Module]) -> tuple[str, ...]:
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    _self, *parameters = inspect.signature(kind.forward).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in positional)


def given_argument(names: tuple[str, ...], args: Args, kwargs: Kwargs, name: str) -> Any:
    """An argument that may be given by position or by name."""
    if not args or name in kwargs:
        return kwargs.get(name)
    return args[names.index(name)] if name in names[: len(args)] else None


def with_argument(names: tuple[str, ...], args: Args, kwargs: Kwargs, name: str, value: Any) -> tuple[Args, Kwargs]:
    """The arguments of a call with one of them changed."""
    if args and name in names[: len(args)]:
        position = names.index(name)
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, name: value}


def named_arguments(module: nn.Module, args: Args, kwargs: Kwargs) -> Kwargs:
    """All arguments of a call by name."""
    return {**dict(zip(argument_names(module), args, strict=False)), **kwargs} if args else kwargs


def argument_of(kwargs: Mapping[str, Any], name: str, what: str) -> Any:
    """An argument of a call by name; `what` says in the error whose choice the name was."""
    if name not in kwargs:
        raise MergeRuntimeError(f"{what} is {name!r}, and the call has no such argument: it has {', '.join(kwargs)}.")
    return kwargs[name]
