"""Checks of single options that every method's config can use; what is wrong is said in a sentence."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Sequence
from typing import Any

from tokenmerge.errors import ConfigError, hint

LARGEST_SIDE = 8192  # pixels


def check_names(kind: type[Any], values: Sequence[object], options: Collection[str]) -> None:
    """Refuse what a frozen dataclass has no option for, before its own TypeError does."""
    known = [field.name for field in dataclasses.fields(kind)]
    if values:
        first = next((name for name in ("ratio", "tile", "step_speedup") if name in known), known[0])
        raise ConfigError(
            f"{kind.__name__} takes its options by name, and was given {values[0]!r} alone: write "
            f"{kind.__name__}({first}={values[0]!r}), for instance."
        )
    for name in options:
        if name not in known:
            advice = hint(name, known, f"it has {', '.join(known)}.")
            raise ConfigError(f"{kind.__name__} has no option {name!r}: {advice}")


def check_choice(config: object, field: str, value: object, allowed: Collection[object]) -> None:
    if value not in allowed:
        raise ConfigError(f"{field} {value!r} is not one that {type(config).__name__} takes: use {listed(allowed)}.")


def check_whole(field: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{field} is {value!r}: it takes a whole number of at least {least}.")


def check_pixels(size: object) -> None:
    """A (height, width) in pixels."""
    sides = size if isinstance(size, (list, tuple)) else ()
    whole = all(isinstance(side, int) and not isinstance(side, bool) and 0 < side <= LARGEST_SIDE for side in sides)
    if len(sides) != 2 or not whole:
        raise ConfigError(
            f"size is {size!r}: it takes (height, width) in pixels, two whole numbers from 1 to {LARGEST_SIDE}, such "
            f"as (512, 768)."
        )


def check_flag(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{field} is {value!r}: it takes True or False.")


def takes_arguments(function: Any, count: int) -> bool:
    """Whether a function can be called with `count` arguments; True if Python cannot know."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


def check_step_speedup(value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= 10:
        raise ConfigError(
            f"step_speedup is {value!r}: one denoising step in this many is computed, so it takes a number from 1 to "
            f"10, such as 2."
        )


def store_tuple(config: object, field: str) -> None:
    """A single word or a list is as good as a tuple: JSON and the command line have no tuples."""
    value = getattr(config, field)
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{field} is {value!r}: it takes a list.")
    object.__setattr__(config, field, tuple(value))


def listed(choices: Collection[object]) -> str:
    return ", ".join(repr(choice) for choice in choices)


def store_tile(config: object, field: str) -> None:
    """A tile in tokens, as (height, width), or (frames, height, width) for video; one number is a square."""
    value = getattr(config, field)
    tile = (value, value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(tile, (list, tuple)) or len(tile) not in (2, 3):
        raise ConfigError(
            f"{field} is {value!r}: it takes one whole number for a square, (height, width), or (frames, height, "
            f"width) for video."
        )
    for side in tile:
        check_whole(field, side, least=1)
    object.__setattr__(config, field, tuple(tile))
