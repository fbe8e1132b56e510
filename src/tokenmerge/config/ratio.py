"""Ratios that change over a generation and over a model's blocks: numbers, lists, tables and functions.

A ratio is asked for at a `progress` and a `depth`, both from 0 to 1. Progress is how much of the noise is gone: 1 minus
the timestep over the generation's first, 0 at the first step. It comes from the timestep because a model is told that
at every call, and never how many steps there will be. Depth is 0 at the model's first block and 1 at its last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tokenmerge.errors import ConfigError

RatioFunction = Callable[[float, float], float]  # (progress, depth) -> ratio
Ratio = float | tuple[float, ...] | tuple[tuple[float, ...], ...] | RatioFunction

ALLOWED = "numbers from 0 (left alone) up to, not including, 1"


def varies(ratio: object) -> bool:
    """Is it anything but one number?"""
    return callable(ratio) or isinstance(ratio, tuple)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_ratio(value: object) -> bool:
    return is_number(value) and 0 <= value < 1  # type: ignore[operator]


def stored_ratio(field: str, value: Any) -> Any:
    """The value as a config keeps it: lists become tuples, and what they hold is checked."""
    if not isinstance(value, (list, tuple)):
        return value
    rows = tuple(tuple(row) if isinstance(row, (list, tuple)) else row for row in value)
    numbers = [number for row in rows for number in (row if isinstance(row, tuple) else (row,))]
    shaped = len({isinstance(row, tuple) for row in rows}) == 1 and all(row != () for row in rows)
    if not shaped or not all(is_ratio(number) for number in numbers):
        raise ConfigError(
            f"{field} is {value!r}: a list takes {ALLOWED}, one for each stretch of the steps; a list of lists takes "
            f"one list for each stretch of the steps, each with a number for each stretch of the blocks."
        )
    if not any(numbers):
        raise ConfigError(
            f"{field} is {value!r}, which is 0 throughout, so nothing would be merged: raise one of them."
        )
    return rows


def ratio_at(field: str, ratio: Any, progress: float, depth: float) -> Any:
    """The number a ratio is there.

    >>> ratio_at("ratio", (0.2, 0.6), progress=0.5, depth=0.0)
    0.6
    >>> ratio_at("ratio", ((0.2, 0.6), (0.4, 0.8)), progress=0.0, depth=1.0)
    0.6
    >>> ratio_at("ratio", lambda progress, depth: progress / 2, progress=0.5, depth=0.0)
    0.25
    """
    if isinstance(ratio, tuple):
        ratio = _stretch(ratio, progress)
        return _stretch(ratio, depth) if isinstance(ratio, tuple) else ratio
    if not callable(ratio):
        return ratio
    value = ratio(progress, depth)
    if not is_ratio(value):
        raise ConfigError(
            f"{field} is a function that gave {value!r} for progress {progress:g} and depth {depth:g}: it must give "
            f"{ALLOWED}."
        )
    return value


def largest(ratio: Any) -> float:
    """The largest number that a ratio is known to hold; 0 for a function, which shows only when it is called."""
    if isinstance(ratio, tuple):
        return max(largest(item) for item in ratio)
    return 0.0 if callable(ratio) or ratio is None else ratio


def goes_below(one: Any, other: Any) -> bool:
    """Is one ratio the smaller anywhere, at any step and block? A function may be anything.

    >>> goes_below((0.4, 0.8), (0.2, 0.5)), goes_below(0.4, ((0.2, 0.5),))
    (False, True)
    """
    if callable(one) or callable(other):
        return True
    rows = [row for ratio in (one, other) if isinstance(ratio, tuple) for row in ratio]
    return any(
        ratio_at("", one, progress, depth) < ratio_at("", other, progress, depth)
        for progress in moments(one, 1) | moments(other, 1)
        for depth in set().union({0.0}, *(moments(row, 1) for row in rows))
    )


def moments(ratio: Any, tries: int) -> set[float]:
    """Where in a generation to look at a ratio to tell all that it is: where a stretch of a list begins.

    A function may change anywhere; it is looked at so many times, at even distances.

    >>> sorted(moments((0.2, 0.4, 0.6), 10)), sorted(moments(lambda progress, depth: 0.5, 2))
    ([0.0, 0.3333333333333333, 0.6666666666666666], [0.0, 0.5])
    """
    count = tries if callable(ratio) else len(ratio) if isinstance(ratio, tuple) else 1
    return {place / count for place in range(count)}


def ratio_text(ratio: Any) -> str:
    """A ratio in a line of text.

    >>> ratio_text(0.5), ratio_text((0.2, 0.5)), ratio_text(((0.2, 0.5),))
    ('0.5', '0.2 > 0.5', '0.2 / 0.5')
    """
    if callable(ratio):
        return f"{getattr(ratio, '__name__', 'a function')}(progress, depth)"
    if isinstance(ratio, tuple):
        rows = [" / ".join(f"{item:g}" for item in row) if isinstance(row, tuple) else f"{row:g}" for row in ratio]
        return " > ".join(rows)
    return f"{ratio:g}"


def _stretch(values: Sequence[Any], where: float) -> Any:
    """The value at `where` from 0 to 1, each value holding for an equal share."""
    # A hair more, because progress is a quotient: a half of 999 steps must not fall short of 0.5.
    return values[max(0, min(len(values) - 1, math.floor(where * len(values) + 1e-6)))]
