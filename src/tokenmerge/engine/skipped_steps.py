"""Which steps are computed and which are skipped: pure functions of the number of steps and the speed-up asked for.

Early steps decide the layout of an image and are hard to forecast, so the gaps between computed steps grow from there.
The last step that counts is computed, because it corrects the forecasts before it. If very few steps are computed, and
at most every other one, the largest gap decides. Then all gaps are alike, and the steps behind the last computed one
are one of them.
"""

from __future__ import annotations

import math
from functools import lru_cache

# How gaps grow: computed steps lie at (j / count) ** GROWTH of the way, one step apart at least.
GROWTH = 1.6
# And where they are not corrected, so that late ones must be better.
GROWTH_UNCORRECTED = 1.25
# With fewer, nothing is left of the line that forecasts follow.
FEWEST_COMPUTED = 3
# Up to this many computed steps are spread evenly.
FEW_COMPUTED = 4
# Images of fewer steps skip none: each of theirs changes too much.
FEWEST_STEPS = 6
# Nor those of fewer whose forecasts are not corrected, but for a step or two in the middle (`skips_unknown`).
FEWEST_UNCORRECTED = 12
# Without knowledge of the sampler, the first steps are computed, and all beyond this fraction of the noise: the last
# one may be near.
FIRST_UNKNOWN = 4
LATEST_UNKNOWN = 0.75


@lru_cache(maxsize=64)
def computed_steps(count: int, speedup: float, last: int | None = None, corrected: bool = True) -> frozenset[int]:
    """The steps of an image that are computed, about `count / speedup` of them.

    last: the last step that counts; those behind it change next to nothing and are skipped.
    corrected: forecasts are made good at the next computed step.

    >>> sorted(computed_steps(20, 2.0))
    [0, 1, 2, 3, 5, 7, 10, 13, 16, 19]
    >>> sorted(computed_steps(10, 3.0))
    [0, 3, 7]
    """
    end = count - 1 if last is None else last
    wanted = max(round(count / speedup), FEWEST_COMPUTED)
    if speedup <= 1 or count < FEWEST_STEPS or wanted > end:
        return frozenset(range(count))
    if wanted <= FEW_COMPUTED and 2 * wanted <= count and corrected:
        return frozenset(round(count * index / wanted) for index in range(wanted))
    growth = GROWTH if corrected else GROWTH_UNCORRECTED
    chosen = [0]
    for index in range(1, wanted):
        chosen.append(max(chosen[-1] + 1, round(end * (index / (wanted - 1)) ** growth)))
    return frozenset(chosen)


def skips_unknown(
    number: int, computed: int, skipped_in_a_row: int, progress: float, speedup: float, first_progress: float
) -> bool:
    """Whether to skip a step of an image whose number of steps is not known: later, fewer, and none near the end.

    number: of the step. computed: how many were computed before it. progress: the fraction of the noise removed.
    first_progress: the same at the second step.
    """
    # Without timesteps there is no progress, and every step may be the last.
    if speedup <= 1 or number < FIRST_UNKNOWN or not 0 < progress < LATEST_UNKNOWN:
        return False
    if progress / number > 1 / FEWEST_STEPS:  # each step removes much of the noise: there are few
        return False
    if number > steps_unknown(number, progress, first_progress) - 1.5:
        return False
    return skipped_in_a_row < max(1, round(speedup) - 1) and computed * speedup > number


def steps_unknown(number: int, progress: float, first_progress: float) -> float:
    """How many steps an image has whose timesteps fall to 0 evenly, or evenly and then shifted; else infinitely many.

    Noise over what is gone of it is then (count / number - 1) times the same factor at each step.

    >>> round(steps_unknown(4, 0.5, 0.125), 3), round(steps_unknown(4, 0.25, 1 / 22), 3)
    (8.0, 8.0)
    """
    if not (0 < first_progress < 1 and 0 < progress < 1):
        return math.inf
    growth = progress / (1 - progress) * (1 - first_progress) / first_progress / number
    return (number * growth - 1) / (growth - 1) if growth > 1 else math.inf
