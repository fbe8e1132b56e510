"""How values on the command line are read."""

from __future__ import annotations

import math

import pytest
from command_runs import SMALL, Run
from hypothesis import given
from hypothesis import strategies as st

from tokenmerge.cli.options import read_guidance, read_settings, read_size, read_value, read_whole
from tokenmerge.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("-1", -1),
        ("true", True),
        ("False", False),
        ("null", None),
        ("None", None),
        ("[8, 8]", [8, 8]),
        ("(8, 8)", (8, 8)),
        ("8,8", (8, 8)),
        ("self,mlp", ("self", "mlp")),
        ("stripe", "stripe"),
        ("mid_block.*", "mid_block.*"),
        ("", ""),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_values(text: str, value: object) -> None:
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


def test_not_a_number_stays_one() -> None:
    assert math.isnan(read_value("NaN"))


@given(st.text())
def test_any_text_is_some_value(text: str) -> None:
    read_value(text)


@given(
    st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers()))
)
def test_python_literals_come_back(value: object) -> None:
    assert read_value(repr(value)) == value


@pytest.mark.parametrize("pair", ["region", "=stripe", " = "])
def test_settings_without_name_or_value(pair: str) -> None:
    with pytest.raises(UsageError, match="OPTION=VALUE"):
        read_settings([pair])


def test_a_setting_given_twice() -> None:
    with pytest.raises(UsageError, match="given twice"):
        read_settings(["tile=8,8", "tile=4,4"])


@pytest.mark.parametrize(
    ("text", "size"), [("512", (512, 512)), ("768x512", (768, 512)), ("768X512", (768, 512)), ("8x16", (8, 16))]
)
def test_sizes(text: str, size: tuple[int, int]) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("big", "WIDTHxHEIGHT"),
        ("512x", "WIDTHxHEIGHT"),
        ("1x2x3", "WIDTHxHEIGHT"),
        ("-512", "WIDTHxHEIGHT"),
        ("5e2", "WIDTHxHEIGHT"),
        ("0", "1 to 8192"),
        ("512x90000", "1 to 8192"),
        ("513", "use 512 instead"),
        ("512x300", "use 304 instead"),
        ("3", "use 8 instead"),
    ],
)
def test_wrong_sizes(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_size(text)


@pytest.mark.parametrize("text", ["0", "-3", "1001", "many", "2.5", ""])
def test_whole_numbers_out_of_bounds(text: str) -> None:
    with pytest.raises(UsageError, match=r"--steps is .* whole number from 1 to 1000"):
        read_whole("--steps", text, 1, 1000)


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "much"])
def test_wrong_guidance(text: str) -> None:
    with pytest.raises(UsageError, match="--guidance is"):
        read_guidance(text)


def test_a_preset_is_a_method_without_options(run: Run) -> None:
    outcome = run("generate", "red apple", *SMALL, "--method", "quality", "--set", "tile=2")
    assert outcome.code == 2
    assert (
        "quality is a preset, which has all its options: leave out --ratio and --set, or name a method." in outcome.err
    )
