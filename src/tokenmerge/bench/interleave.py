"""The loop: in every repeat each contender has its turn, so that a noisy minute hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tqdm import tqdm

from tokenmerge.bench.result import Measurement


class Trial(Protocol):
    """One contender in one case."""

    measurement: Measurement

    def visit(self) -> None:
        """Measure once and add what was measured to `measurement`."""


def interleave(trials: Sequence[Trial], repeats: int, save: Callable[[], None]) -> bool:
    """Visit every trial `repeats` times, in turn; False if the user stopped it.

    Saves after each repeat, and on the way out whatever happens. Trials that have been measured in an earlier run are
    visited only for what they lack.
    """
    missing = sum(max(0, repeats - trial.measurement.repeats) for trial in trials)
    with tqdm(total=missing, unit="turn", disable=None) as bar:
        try:
            for repeat in range(repeats):
                for trial in trials:
                    if trial.measurement.repeats <= repeat:
                        bar.set_description(_title(trial.measurement, repeat, repeats))
                        trial.visit()
                        bar.update()
                save()
        except KeyboardInterrupt:
            return False
        finally:
            save()
    return True


def _title(measurement: Measurement, repeat: int, repeats: int) -> str:
    ratio = "" if measurement.ratio is None else f" {measurement.ratio:g}"
    return f"repeat {repeat + 1}/{repeats}: {measurement.method}{ratio}"
