"""Holds the simulator against published times; `python benchmarks/simulated/published.py` writes published.json.

Published times are of whole pipelines, with text encoding and decoding; simulated ones are of the denoiser alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenmerge import ToMA
from tokenmerge.config.base import MergeConfig
from tokenmerge.models.published import build
from tokenmerge.simulate.devices import read_devices
from tokenmerge.simulate.predict import default_batch, merged, predict, subject_for, tomesd_package, unmerged

TOMA = "ToMA (arXiv:2509.10918), draft of 2024"
CACHE_DIT = "cache-dit 1.x, README"
FAL = "fal-ai/stable-diffusion-benchmarks, README"


@dataclass(frozen=True)
class Published:
    """A time that somebody measured."""

    model: str
    size: int
    steps: int
    device: str
    seconds: float
    source: str
    method: str = "unmerged"
    config: MergeConfig | None = None


FIGURES = (
    Published("flux", 1024, 28, "L20", 24.85, CACHE_DIT),
    Published("flux", 1024, 35, "RTX6000Ada", 21.03, TOMA),
    Published("flux", 1024, 35, "RTX6000Ada", 20.14, TOMA, "released, ratio 0.25", ToMA.released(0.25)),
    Published("flux", 1024, 35, "RTX6000Ada", 18.58, TOMA, "released, ratio 0.5", ToMA.released(0.5)),
    Published("flux", 1024, 35, "RTX6000Ada", 16.12, TOMA, "released, ratio 0.75", ToMA.released(0.75)),
    Published("sdxl", 1024, 50, "A100", 5.93, FAL),
    Published("sd15", 512, 50, "A100", 1.60, FAL),
)


@cache
def subject(model: str, size: int):
    built = build(model)
    return subject_for(built, (size, size), default_batch(built))


def simulated(figure: Published) -> float:
    """Eager seconds of the denoiser."""
    of = subject(figure.model, figure.size)
    if figure.config is None:
        generation = unmerged(of, figure.steps)
    else:
        generation = merged(of, figure.config, figure.steps, figure.method)
    (found,) = predict([generation], {figure.device: read_devices()[figure.device]})
    return found.eager_seconds


def tomesd_on_sdxl() -> float:
    """The speed-up of the tomesd package at a ratio of 0.5, on the card on which the paper finds it slower."""
    of = subject("sdxl", 1024)
    _, found = predict([unmerged(of, 50), tomesd_package(of, 50)], {"RTX6000Ada": read_devices()["RTX6000Ada"]})
    return found.eager_speedup


def main() -> None:
    rows = []
    for figure in FIGURES:
        seconds = simulated(figure)
        row = {key: getattr(figure, key) for key in ("model", "size", "steps", "device", "method", "source")}
        row |= {"published_seconds": figure.seconds, "simulated_seconds": round(seconds, 2)}
        rows.append(row | {"error": round(seconds / figure.seconds - 1, 3)})
        print(f"{figure.model} {figure.method} on {figure.device}: {seconds:.2f} s, published {figure.seconds} s")
    result = {"simulated": True, "figures": rows, "tomesd_sdxl_rtx6000ada_speedup": round(tomesd_on_sdxl(), 2)}
    Path(__file__).with_name("published.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
