"""Result files: raw times with everything needed to repeat them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from tokenmerge.errors import UsageError
from tokenmerge.runtime.files import write_atomically

FORMAT = 1
Kind = Literal["model", "ops", "scaling"]


@dataclass
class Measurement:
    """All times of one contender in one case."""

    method: str
    ratio: float | None = None
    case: dict[str, int] = field(default_factory=dict)  # what differs within a run besides method and ratio
    settings: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, int] = field(default_factory=dict)  # steps of each kind in one cycle
    times: dict[str, list[float]] = field(default_factory=dict)  # seconds, by kind of step or by operation
    overhead: dict[str, list[float]] = field(default_factory=dict)  # seconds of each step spent on merging itself
    multiply_adds: dict[str, int] | None = None
    peak_memory: int | None = None  # bytes above weights and inputs, in a step that selects
    notes: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.method, self.ratio, tuple(sorted(self.case.items()))

    @property
    def repeats(self) -> int:
        return min(map(len, self.times.values()), default=0)

    def add(self, times: dict[str, float], overhead: dict[str, float]) -> None:
        for stored, new in ((self.times, times), (self.overhead, overhead)):
            for name, seconds in new.items():
                stored.setdefault(name, []).append(seconds)


@dataclass
class Result:
    """One run of a benchmark."""

    kind: Kind
    settings: dict[str, Any]  # what was asked for: model, size, batch, dtype, device and so on
    machine: dict[str, Any]
    date: str
    command: str
    measurements: list[Measurement] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        values = dict(values)
        if values.pop("format", None) != FORMAT:
            raise ValueError("not a result of this version")
        measurements = [Measurement(**measurement) for measurement in values.pop("measurements")]
        return cls(**values, measurements=measurements)

    def save(self, path: Path) -> None:
        """Write the file in one move: a reader, or a crash, finds the old one or the new one."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path} is not a result of `tokenmerge bench` ({error}): measure it again.") from None

    def continues(self, earlier: Result) -> bool:
        """Whether `earlier` can be the first repeats of this run: everything but the date must be equal."""
        return (self.kind, self.settings, self.machine) == (earlier.kind, earlier.settings, earlier.machine)
