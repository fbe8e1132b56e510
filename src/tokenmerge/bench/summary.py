"""From raw times to the figures people compare: best and median, speed-up, and the share of what could be saved."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokenmerge.bench.contenders import BOUND, LIMIT, NONE
from tokenmerge.bench.result import Measurement
from tokenmerge.bench.schedule import Schedule

Reduce = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Figures:
    """A measurement in numbers; times are seconds a step."""

    steps: Mapping[str, float]  # by kind of step
    mean: float  # over the schedule
    speedup: float | None  # over the plain model
    removed: float | None  # share of the time that deleting the blocks would remove; None where not measured


@dataclass(frozen=True)
class Row:
    """A measurement summed up both ways: best of all repeats (least noise), and median (what to expect)."""

    measurement: Measurement
    best: Figures
    median: Figures
    multiply_adds: float | None  # of a step, over the schedule
    overhead: float | None  # share of a step that merging itself takes, over the schedule and median over repeats
    over_bound: float | None  # how much slower than the lower bound it is, over the schedule and median over repeats


def summarise(measurements: Sequence[Measurement]) -> list[Row]:
    """Rows for everything that has been measured at least once."""
    measured = [measurement for measurement in measurements if measurement.repeats]
    return [
        Row(
            measurement,
            _figures(measurement, measured, min),
            _figures(measurement, measured, statistics.median),
            _multiply_adds(measurement),
            _overhead_share(measurement),
            _over_bound(measurement, measured),
        )
        for measurement in measured
    ]


def removed_share(plain: float, method: float, limit: float) -> float:
    """What part of the removable time a method removed.

    >>> removed_share(plain=8.0, method=6.0, limit=4.0)
    0.5
    """
    return (plain - method) / (plain - limit)


def step_costs(measurement: Measurement, reduce: Reduce) -> dict[str, float]:
    """Seconds of each kind of step over all repeats."""
    return {phase: reduce(times) for phase, times in measurement.times.items()}


def mean_step(measurement: Measurement, reduce: Reduce) -> float:
    """Seconds of a step over the schedule."""
    return Schedule(measurement.schedule).amortised(step_costs(measurement, reduce))


def _figures(measurement: Measurement, measured: Sequence[Measurement], reduce: Reduce) -> Figures:
    mean = mean_step(measurement, reduce)
    plain = _mean_of(NONE, measurement, measured, reduce)
    limit = _mean_of(LIMIT, measurement, measured, reduce)
    # On a tiny model noise can make the limit slower than the plain model; then there is no share to speak of.
    removable = plain is not None and limit is not None and limit < plain
    return Figures(
        steps=step_costs(measurement, reduce),
        mean=mean,
        speedup=None if plain is None else plain / mean,
        removed=removed_share(plain, mean, limit) if removable else None,  # type: ignore[arg-type]
    )


def _mean_of(method: str, measurement: Measurement, measured: Sequence[Measurement], reduce: Reduce) -> float | None:
    same = [other for other in measured if other.method == method and other.case == measurement.case]
    return mean_step(same[0], reduce) if same else None


def _multiply_adds(measurement: Measurement) -> float | None:
    if measurement.multiply_adds is None:
        return None
    return Schedule(measurement.schedule).amortised(measurement.multiply_adds)


def _overhead_share(measurement: Measurement) -> float | None:
    if not measurement.overhead:
        return None
    # Repeat by repeat, because both times come from the same calls and a slow minute slows both.
    shares = [
        _in_repeat(measurement, measurement.overhead, repeat) / _in_repeat(measurement, measurement.times, repeat)
        for repeat in range(measurement.repeats)
    ]
    return statistics.median(shares)


def _over_bound(measurement: Measurement, measured: Sequence[Measurement]) -> float | None:
    bound = next((other for other in measured if other.key == (BOUND, *measurement.key[1:])), None)
    if bound is None or measurement is bound:
        return None
    # Repeat by repeat: the two have their turns right after one another, so a slow minute slows both.
    times_as_long = [
        _in_repeat(measurement, measurement.times, repeat) / _in_repeat(bound, bound.times, repeat)
        for repeat in range(min(measurement.repeats, bound.repeats))
    ]
    return statistics.median(times_as_long) - 1


def _in_repeat(measurement: Measurement, times: Mapping[str, Sequence[float]], repeat: int) -> float:
    """Seconds of a step over the schedule, in one repeat."""
    schedule = Schedule(measurement.schedule)
    return schedule.amortised({phase: times[phase][repeat] for phase in schedule.phases})
