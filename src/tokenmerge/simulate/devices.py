"""The GPUs that a generation can be predicted for."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from tokenmerge.errors import ConfigError, hint

TABLE = Path(__file__).with_name("devices.toml")


@dataclass(frozen=True)
class Device:
    """A GPU by its peak figures. devices.toml says what each field is."""

    name: str
    title: str
    tflops: float
    bandwidth: float
    multiprocessors: int
    cache: float
    sustained: float
    source: str

    def __post_init__(self) -> None:
        for field in ("tflops", "bandwidth", "multiprocessors", "cache", "sustained"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ConfigError(f"{field} of device {self.name} is {value!r}: it takes a number above 0.")


def read_devices(path: Path = TABLE) -> dict[str, Device]:
    """Every device of a table, by name.

    >>> sorted(read_devices())[:2]
    ['A100', 'H100']
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({(error.strerror or str(error)).lower()}): check the path."
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a table of devices: {error}.") from None
    return {name: _device(name, values) for name, values in tables.items()}


def device_named(name: str, devices: dict[str, Device]) -> Device:
    """The device of that name; an unknown one is an error that suggests another."""
    if name in devices:
        return devices[name]
    otherwise = f"use one of {', '.join(devices)}, or a file with its figures."
    raise ConfigError(f"device {name!r} is not known: {hint(name, devices, otherwise)}")


def _device(name: str, values: object) -> Device:
    wanted = {field.name for field in fields(Device)} - {"name"}
    given = set(values) if isinstance(values, dict) else set()
    if not isinstance(values, dict) or given != wanted:
        raise ConfigError(
            f"device {name} needs exactly the entries {', '.join(sorted(wanted))}; "
            f"missing: {', '.join(sorted(wanted - given)) or 'none'}, "
            f"unknown: {', '.join(sorted(given - wanted)) or 'none'}."
        )
    return Device(name=name, **values)
