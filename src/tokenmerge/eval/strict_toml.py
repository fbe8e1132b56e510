"""Reading a toml table strictly: every key is known, every value has its kind and its bounds."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmerge.errors import hint, nearest
from tokenmerge.eval.errors import ExperimentError
from tokenmerge.runtime.plain_text import is_control

LONGEST_TEXT = 10_000
LARGEST_FILE = 1_000_000  # bytes
# tomllib keeps every beginning of a key of many parts: a few hundred kilobytes of them fill any memory.
PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){PART}(?:[ \t]*+\.[ \t]*+{PART}){{20}}")


class TomlTable:
    """One table of an experiment file. A key nobody knows is an error at once, with the nearest name that is known."""

    def __init__(self, values: object, where: str, keys: Sequence[str]) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise ExperimentError(f"{where} is {_shown(values)}: it takes a table of {', '.join(keys)}.")
        for key in values:
            if key not in keys:
                advice = hint(key, keys, f"it takes {', '.join(keys)}.")
                raise ExperimentError(f"{where} has no key {key!r}: {advice}")
        self._values: dict[str, Any] = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def value(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default, "a text")
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise self.wrong(key, value, f"a text of at most {LONGEST_TEXT} characters")
        if any(map(is_control, value)):
            raise self.wrong(key, value, "a text without control characters")
        return value

    def choice(self, key: str, default: str, allowed: Sequence[str]) -> str:
        value = self.text(key, default)
        if value not in allowed:
            near = nearest(value, allowed)
            meant = f"; did you mean {near!r}" if near else ""
            raise self.wrong(key, value, f"one of {', '.join(map(repr, allowed))}{meant}")
        return value

    def whole(self, key: str, default: int | None, least: int, most: int) -> int:
        return self._whole(key, self._required(key, default, "a whole number"), least, most)

    def number(self, key: str, default: float | None, least: float, most: float) -> float:
        value = self._required(key, default, "a number")
        if not _is_number(value) or not least <= value <= most:
            raise self.wrong(key, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def wholes(self, key: str, least: int, most: int, longest: int) -> tuple[int, ...]:
        return tuple(self._whole(key, item, least, most) for item in self._list(key, longest))

    def numbers(self, key: str, longest: int) -> tuple[float, ...]:
        items = self._list(key, longest)
        for item in items:
            if not _is_number(item):
                raise self.wrong(key, item, "numbers")
        return tuple(float(item) for item in items)

    def texts(self, key: str, default: Sequence[str], longest: int) -> tuple[str, ...]:
        items = self._list(key, longest) if key in self._values else list(default)
        for item in items:
            if not isinstance(item, str):
                raise self.wrong(key, item, "texts")
        return tuple(items)

    def wrong(self, key: str, value: object, takes: str) -> ExperimentError:
        return ExperimentError(f"{key} in {self.where} is {_shown(value)}: it takes {takes}.")

    def _required(self, key: str, default: Any, kind: str) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise ExperimentError(f"{self.where} lacks {key!r}: add {key} = ..., {kind}.")
        return value

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def _list(self, key: str, longest: int) -> list[Any]:
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) > longest:
            raise self.wrong(key, value, f"a list of at most {longest}")
        return value


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a toml file, or a sentence that says why it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ExperimentError(
                f"{path} has more than {LARGEST_FILE // 10**6} MB: an experiment file is a small text."
            )
        text = path.read_text(encoding="utf-8")
        if LONG_KEY.search(text):
            raise ExperimentError(f"{path} has a key of very many parts: an experiment's keys are short.")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise ExperimentError(f"{path} does not exist: give the path of an experiment file (.toml).") from None
    except IsADirectoryError:
        raise ExperimentError(f"{path} is a folder: give the path of an experiment file (.toml).") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path} is not text in UTF-8: give a toml file.") from None
    except ValueError as error:  # tomllib's own is one, and a number of ten thousand digits raises another
        raise ExperimentError(f"{path} is not valid toml: {error}.") from None
    except RecursionError:
        raise ExperimentError(f"{path} is nested too deeply: an experiment has tables of plain values.") from None
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error.strerror or error}.") from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values, tables and lists of tables as toml text; None is left out, as toml has no word for it.

    >>> print(to_toml({"name": "x", "image": {"steps": 4, "guidance": None}}))
    name = "x"
    <BLANKLINE>
    [image]
    steps = 4
    <BLANKLINE>
    """
    import tomli_w  # only what writes experiments needs it; the page, which reads this module, does not have it

    return tomli_w.dumps(_without_none(values))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
