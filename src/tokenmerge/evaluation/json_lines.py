"""One JSON value a line, whatever reads the lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Line ends to Python's splitlines and to some editors, and plain characters to JSON: prompts may hold them.
LINE_ENDS = ("\x85", "\u2028", "\u2029")


def to_line(value: Any) -> str:
    """A value as one line of text, without its end."""
    line = json.dumps(value, ensure_ascii=False)
    for character in LINE_ENDS:
        line = line.replace(character, f"\\u{ord(character):04x}")
    return line


def read_lines(path: Path) -> list[Any]:
    """The values of a file that was written whole; none where there is no file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []
