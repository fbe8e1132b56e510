"""The machine and the versions that a result was made with: without them no figure means anything."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("tokenmerge", "torch", "diffusers", "transformers")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads, accelerator and versions, as plain JSON values."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _total_memory(),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {**{name: version_of(name) for name in PACKAGES}, "tomesd": version_of("tomesd")},
    }


@cache
def library_versions() -> dict[str, str]:
    """Python and the libraries that an image depends on."""
    return {"python": platform.python_version(), **{name: version_of(name) or "unknown" for name in PACKAGES}}


def version_of(package: str) -> str | None:
    """The version that is installed; None if the package is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def free_memory(device: torch.device) -> int | None:
    """Bytes that a model could still take on the device; None if that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


@contextmanager
def pinned_threads(count: int | None) -> Iterator[int]:
    """Hold torch to a fixed number of threads, so that it is known and the same for every method."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
