"""Which device a model runs on, and in which precision: one choice for every command."""

from __future__ import annotations

import warnings

import torch

from tokenmerge.errors import ConfigError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class SlowPrecisionWarning(UserWarning):
    """Half precision was asked for on a CPU."""


def pick_device(name: str | None) -> torch.device:
    """The device of that name, if this machine has it; the best there is for None."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else _mps_or_cpu())
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        found = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        found += ["mps"] * (_mps_or_cpu() == "mps")
        raise ConfigError(f"device is {name!r}, which this machine does not have: use {' or '.join(found)}.") from None
    if device.type == "meta":
        raise ConfigError("device is 'meta', on which nothing can be computed: use cpu or cuda.")
    return device


def pick_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype of that name; for None float32 on a CPU and half precision elsewhere."""
    if name is not None:
        if name not in DTYPES:
            raise ConfigError(f"dtype is {name!r}: use one of {', '.join(DTYPES)}.")
        if device.type == "cpu" and name != "float32":
            warnings.warn(
                f"{name} is for GPUs: on a CPU it is many times slower than float32. Leave dtype out.",
                SlowPrecisionWarning,
                stacklevel=2,
            )
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    # bfloat16 has the range of float32, which some transformers need; older GPUs do without it.
    wide = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if wide else torch.float16


def _mps_or_cpu() -> str:
    return "mps" if torch.backends.mps.is_available() else "cpu"
