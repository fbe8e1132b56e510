"""Results with round numbers, whose figures can be worked out by hand."""

from typing import Any

from tokenmerge.bench.result import Kind, Measurement, Result

MACHINE = {
    "cpu": "A Processor",
    "cores": 4,
    "threads": 2,
    "memory_bytes": 8,
    "accelerator": None,
    "system": "Linux",
    "python": "3.11",
    "versions": {"tokenmerge": "0.1.0", "torch": "2.13.0", "diffusers": "0.42.1", "tomesd": "0.1.3", "numpy": "2"},
}
ALIKE = {"steady": 1}
TEN = {"select": 1, "steady": 8, "weights": 1}


def model_result(**settings: Any) -> Result:
    """8 s a step unmerged, 4 s without blocks; ToMA 24 s in ten steps at best."""
    asked = {"model": "sd15", "size": [512, 512], "batch": 1, "dtype": "float32", "blocks": None, "compile": None}
    measurements = [
        Measurement("none", schedule=ALIKE, times={"steady": [8.0, 10.0, 9.0]}, multiply_adds={"steady": 800}),
        Measurement("blocks-deleted", schedule=ALIKE, times={"steady": [4.0, 5.0, 4.5]}),
        Measurement("tomesd-package", 0.5, schedule=ALIKE, times={"steady": [6.4, 8.0, 7.2]}),
        Measurement(
            "toma",
            0.5,
            schedule=TEN,
            times={"select": [9.0, 8.0, 10.0], "steady": [5.0, 6.0, 7.0], "weights": [8.0, 7.0, 9.0]},
            multiply_adds={"select": 500, "steady": 400, "weights": 450},
            peak_memory=2_000_000,
        ),
    ]
    return Result("model", asked | settings, MACHINE, "2026-01-02T03:04:05+00:00", "tokenmerge bench", measurements)


def other_result(kind: Kind, measurements: list[Measurement]) -> Result:
    settings = {"channels": 640, "batch": 1, "dtype": "float32"}
    return Result(kind, settings, MACHINE, "2026-01-02T03:04:05+00:00", f"tokenmerge bench {kind}", measurements)
