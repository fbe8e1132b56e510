"""One run of a benchmark from its settings to its result: kept on disk as it goes, and continued if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tokenmerge.bench.interleave import Trial, interleave
from tokenmerge.bench.result import Kind, Measurement, Result
from tokenmerge.errors import UsageError
from tokenmerge.runtime.machine import describe_machine

MakeTrials = Callable[[Sequence[Measurement]], Sequence[Trial]]


@dataclass(frozen=True)
class Output:
    """Where a result goes, and what becomes of one that is there already."""

    path: Path | None = None
    resume: bool = False
    overwrite: bool = False

    def check(self) -> None:
        """Raise a sentence for what could not be written, before anything is measured."""
        if self.path is None:
            if self.resume:
                raise UsageError("--resume continues a result file: name it with --out.")
            return
        if self.path.suffix != ".json":
            raise UsageError(f"--out is {str(self.path)!r}: it is a JSON file, so its name must end in .json.")
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite contradict each other: give one of them.")
        if self.path.exists() and not (self.resume or self.overwrite):
            raise UsageError(
                f"{self.path} exists: add --resume to measure the repeats it lacks, or --overwrite to start afresh."
            )


def run_session(
    kind: Kind,
    settings: dict[str, Any],
    command: str,
    device: torch.device,
    make_trials: MakeTrials,
    repeats: int,
    output: Output,
) -> tuple[Result, bool]:
    """Measure, and say whether it ran to its end. `make_trials` is given what an earlier run has measured."""
    result = Result(kind, settings, describe_machine(device), datetime.now(UTC).isoformat(timespec="seconds"), command)
    earlier = _earlier(result, output)
    trials = make_trials(earlier)
    result.measurements = [trial.measurement for trial in trials]

    def save() -> None:
        if output.path is not None:
            result.save(output.path)

    finished = interleave(trials, repeats, save)
    return result, finished


def _earlier(result: Result, output: Output) -> list[Measurement]:
    if output.path is None or not output.resume or not output.path.exists():
        return []
    earlier = Result.load(output.path)
    if not result.continues(earlier):
        raise UsageError(
            f"{output.path} was measured with other settings, other versions or on another machine, and times of the "
            f"two cannot be mixed: use another --out, or --overwrite."
        )
    return earlier.measurements
