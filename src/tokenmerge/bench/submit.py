"""`tokenmerge bench --submit`: one file from a machine with a GPU, to be attached to an issue (docs/gpu.md)."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tokenmerge.accelerations.named import named_acceleration
from tokenmerge.bench.generation import Contestant, generation_seconds
from tokenmerge.bench.subject import Subject
from tokenmerge.presets import NAMES
from tokenmerge.runtime.fidelity import fidelity
from tokenmerge.runtime.generation import ImageRequest, generate
from tokenmerge.runtime.machine import describe_machine
from tokenmerge.runtime.pipelines import load_pipeline

FORMAT = 1
IMAGE_MODELS = ("emoji-sd", "photo-flux")  # embedded, so that everybody has the same weights
PROMPT = "red apple"
PRESETS = {f"preset {name}": {"preset": name} for name in NAMES}


def submission(
    subject: Subject,
    settings: dict[str, Any],
    steps: int,
    repeats: int,
    image_models: Sequence[str] = IMAGE_MODELS,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times of the presets on a model, and how close their images are on embedded models, as plain JSON values.

    say: called with what is being measured.
    """
    device = subject.device
    return {
        "kind": "submission",
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {**describe_machine(device), **_accelerator(device)},
        "settings": {**settings, "steps": steps, "repeats": repeats},
        "generations": _generations(subject, steps, repeats, say),
        "images": [row for name in image_models for row in _images(name, device, steps, say)],
    }


def _generations(subject: Subject, steps: int, repeats: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Seconds of whole generations with random weights: fewer steps, and each preset, in turn."""
    contestants = [
        Contestant("none"),
        Contestant("half of the steps", named_acceleration("fewer-steps", {"fraction": 0.5})),
        *(Contestant(name, named_acceleration("preset", options)) for name, options in PRESETS.items()),
    ]
    times: dict[str, list[float]] = {each.name: [] for each in contestants}
    peaks: dict[str, int | None] = {}
    # The first turn is a warm-up: kernels are chosen and compiled.
    for turn in range(repeats + 1):
        for each in contestants:
            say(f"{each.name}, turn {turn} of {repeats}")
            _reset_peak(subject.device)
            seconds = generation_seconds(subject, each, steps)
            peaks[each.name] = _peak(subject.device)
            if turn:
                times[each.name].append(seconds)
    plain = times["none"]
    return [
        {
            "method": name,
            "seconds": own,
            "speedup": statistics.median(before / after for before, after in zip(plain, own, strict=True)),
            "peak_bytes": peaks[name],
        }
        for name, own in times.items()
    ]


def _images(name: str, device: torch.device, steps: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """PSNR of each preset's image to the unmerged one."""
    import tokenmerge

    loaded = load_pipeline(name, str(device), "float32", False)
    arguments = ImageRequest(PROMPT, steps=steps).arguments(loaded.pipe)
    say(f"{name}, unmerged")
    unmerged, seconds = generate(loaded.pipe, **arguments)
    rows: list[dict[str, Any]] = [{"model": name, "method": "none", "seconds": seconds}]
    for preset in NAMES:
        say(f"{name}, preset {preset}")
        with tokenmerge.merged(loaded.pipe, preset):
            merged, seconds = generate(loaded.pipe, **arguments)
        found = fidelity(unmerged, merged)
        rows.append(
            {"model": name, "method": f"preset {preset}", "seconds": seconds, "psnr": found.psnr, "ssim": found.ssim}
        )
    return rows


def _accelerator(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    found = torch.cuda.get_device_properties(device)
    return {
        "accelerator_memory_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
