"""Which steps are computed and which are skipped: pure functions of the number of steps and the speed-up asked for.

Early steps decide the layout of an image and are hard to forecast, so the gaps between computed steps grow from there.
The last step that counts is computed, because it corrects the forecasts before it. If very few steps are computed, the
largest gap decides. Then all gaps are alike, and the steps behind the last computed one are one of them.
"""

from __future__ import annotations

from functools import lru_cache

# How gaps grow: computed steps lie at (j / count) ** GROWTH of the way, one step apart at least.
GROWTH = 1.6
# With fewer, nothing is left of the line that forecasts follow.
FEWEST_COMPUTED = 3
# Up to this many computed steps are spread evenly.
FEW_COMPUTED = 4
# Images of fewer steps skip none: each of theirs changes too much.
FEWEST_STEPS = 6
# Without knowledge of the sampler, the first steps are computed, and all beyond this fraction of the noise: the last
# one may be near.
FIRST_UNKNOWN = 4
LATEST_UNKNOWN = 0.75


@lru_cache(maxsize=64)
def computed_steps(count: int, speedup: float, last: int | None = None) -> frozenset[int]:
    """The steps of an image that are computed, about `count / speedup` of them.

    last: the last step that counts; those behind it change next to nothing and are skipped.

    >>> sorted(computed_steps(20, 2.0))
    [0, 1, 2, 3, 5, 7, 10, 13, 16, 19]
    >>> sorted(computed_steps(10, 3.0))
    [0, 3, 7]
    """
    end = count - 1 if last is None else last
    wanted = max(round(count / speedup), FEWEST_COMPUTED)
    if speedup <= 1 or count < FEWEST_STEPS or wanted > end:
        return frozenset(range(count))
    if wanted <= FEW_COMPUTED:
        return frozenset(round(count * index / wanted) for index in range(wanted))
    chosen = [0]
    for index in range(1, wanted):
        chosen.append(max(chosen[-1] + 1, round(end * (index / (wanted - 1)) ** GROWTH)))
    return frozenset(chosen)


def skips_unknown(number: int, computed: int, skipped_in_a_row: int, progress: float, speedup: float) -> bool:
    """Whether to skip a step of an image whose number of steps is not known: later, fewer, and none near the end.

    number: of the step. computed: how many were computed before it. progress: the fraction of the noise removed.
    """
    # Without timesteps there is no progress, and every step may be the last.
    if speedup <= 1 or number < FIRST_UNKNOWN or not 0 < progress < LATEST_UNKNOWN:
        return False
    if is_short_unknown(number, progress):
        return False
    return skipped_in_a_row < max(1, round(speedup) - 1) and computed * speedup > number


def is_short_unknown(number: int, progress: float) -> bool:
    """Whether an image whose number of steps is not known has few: then each one removes much of the noise."""
    return progress / number > 1 / FEWEST_STEPS
