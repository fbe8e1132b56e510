"""Docstrings as the API page needs them: `name: text` lines become a list of arguments, doctests an example."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        _rewrite(func, [parameter.name.lstrip("*") for parameter in func.parameters])

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        _rewrite(cls, [])


def _rewrite(described: griffe.Object, names: Sequence[str]) -> None:
    if described.docstring is not None:
        described.docstring.value = with_sections(described.docstring.value, names)


def with_sections(text: str, names: Sequence[str]) -> str:
    """The text with sections of arguments and examples behind it."""
    entry = re.compile(rf"({'|'.join(map(re.escape, names))}): ") if names else None
    plain: list[str] = []
    arguments: list[str] = []
    examples: list[str] = []
    held = plain
    for line in text.splitlines():
        if line.startswith(">>>"):
            held = examples
        elif entry is not None and entry.match(line):
            held = arguments
        elif held is not plain and (not line.strip() or (held is arguments and not line.startswith(" "))):
            held = plain
        held.append(line)
    sections = ["\n".join(plain).rstrip()]
    for title, lines in (("Args", arguments), ("Examples", examples)):
        if lines:
            sections.append("\n".join([f"{title}:", *(f"    {line}".rstrip() for line in lines)]))
    return "\n\n".join(sections)
