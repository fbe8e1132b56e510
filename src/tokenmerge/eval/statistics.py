"""Means with bootstrap intervals, and differences of paired values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
MOST_PICKS = 10_000_000  # at once


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float
    n: int


def bootstrap_mean(values: ArrayLike, resamples: int, seed: int = 0) -> Estimate:
    """The mean over pairs with its percentile bootstrap interval; the same values give the same interval."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values to average")
    means = [array[indices].mean(axis=1) for indices in _resampled(array.size, resamples, seed)]
    return Estimate(float(array.mean()), *_quantiles(np.concatenate(means)), array.size)


def bootstrap_ratio_of_medians(above: ArrayLike, below: ArrayLike, resamples: int, seed: int = 0) -> Estimate:
    """median(above) / median(below) of paired values, with pairs resampled together: a speed-up and how sure it is."""
    first, second = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    ratios = [
        np.median(first[indices], axis=1) / np.median(second[indices], axis=1)
        for indices in _resampled(first.size, resamples, seed)
    ]
    return Estimate(float(np.median(first) / np.median(second)), *_quantiles(np.concatenate(ratios)), first.size)


def _resampled(size: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Samples with repeats, (draws, size) at a time: all at once could be gigabytes."""
    generator = np.random.default_rng(seed)
    rows = max(1, min(100, MOST_PICKS // size))
    for begin in range(0, resamples, rows):
        yield generator.integers(0, size, (min(rows, resamples - begin), size), dtype=np.int64)


def _quantiles(values: NDArray[np.float64]) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def grouped_jackknife(whole: float, without_each: ArrayLike, n: int) -> Estimate:
    """An interval from leaving out one group of images at a time.

    For FID: sampling images with repeats, as the bootstrap does, makes a set look less varied than it is, which moves
    FID itself by far more than its spread.
    """
    left_out = np.asarray(without_each, dtype=np.float64)
    groups = left_out.size
    error = float(np.sqrt((groups - 1) / groups * np.square(left_out - left_out.mean()).sum()))
    # Student's t for 95 %, close enough from 8 groups on.
    reach = 1.96 * (1 + 1.25 / max(groups - 1, 1))
    return Estimate(whole, whole - reach * error, whole + reach * error, n)
