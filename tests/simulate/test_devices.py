"""The table of devices, and tables of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmerge.errors import ConfigError
from tokenmerge.simulate.devices import device_named, read_devices


def test_every_known_device_has_a_source() -> None:
    assert all(device.source and device.tflops > 10 for device in read_devices().values())


def test_an_unknown_device_suggests_one() -> None:
    with pytest.raises(ConfigError, match="did you mean RTX4090"):
        device_named("RTX4090Ti", read_devices())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not toml", "cannot be read"),
        ("[A]\ntflops = 1.0", "missing: bandwidth"),
        (
            '[A]\ntitle = "A"\ntflops = 0\nbandwidth = 1\nmultiprocessors = 1\ncache = 1\nsustained = 1\nsource = "me"',
            "tflops of device A is 0",
        ),
    ],
)
def test_a_broken_table_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_devices(file)
