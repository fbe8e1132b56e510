"""Ratios: one number, or a list of numbers that is stretched over the denoising steps.

A list is read at a `progress` from 0 to 1: the fraction of the noise that is gone, 1 minus the timestep over the first
timestep of the image. It comes from the timestep because a model gets that at every call, but never the number of
steps.
"""

from __future__ import annotations

import math
from typing import Any

from tokenmerge.errors import ConfigError

Ratio = float | tuple[float, ...]

ALLOWED = "numbers from 0 (left alone) up to, not including, 1"


def varies(ratio: object) -> bool:
    """Whether it is a list over the steps, and not one number."""
    return isinstance(ratio, tuple)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_ratio(value: object) -> bool:
    return is_number(value) and 0 <= value < 1  # type: ignore[operator]


def stored_ratio(field: str, value: Any) -> Any:
    """The value as a config keeps it: a list becomes a tuple, and its items are checked."""
    if not isinstance(value, (list, tuple)):
        return value
    if not value or not all(is_ratio(number) for number in value):
        raise ConfigError(f"{field} is {value!r}: a list takes {ALLOWED}, one for each stretch of the steps.")
    if not any(value):
        raise ConfigError(
            f"{field} is {value!r}, which is 0 throughout, so nothing would be merged: raise one of them."
        )
    return tuple(value)


def numbers_of(ratio: Any) -> tuple[Any, ...]:
    """All values of a ratio, in the order of the steps."""
    return ratio if isinstance(ratio, tuple) else (ratio,)


def ratio_at(ratio: Any, progress: float) -> Any:
    """The value of a ratio at a progress from 0 to 1; each item of a list holds for an equal share.

    >>> ratio_at((0.2, 0.6), progress=0.5)
    0.6
    """
    numbers = numbers_of(ratio)
    # A hair more, because progress is a quotient: a half of 999 steps must not fall short of 0.5.
    return numbers[max(0, min(len(numbers) - 1, math.floor(progress * len(numbers) + 1e-6)))]


def moments(ratio: Any) -> set[float]:
    """Each progress at which a stretch of a ratio begins.

    >>> sorted(moments((0.2, 0.4))), moments(0.5)
    ([0.0, 0.5], {0.0})
    """
    count = len(numbers_of(ratio))
    return {place / count for place in range(count)}


def ratio_text(ratio: Any) -> str:
    """A ratio in a line of text.

    >>> ratio_text(0.5), ratio_text((0.2, 0.5))
    ('0.5', '0.2 > 0.5')
    """
    return " > ".join(f"{number:g}" for number in numbers_of(ratio))
