"""One JSON value a line, whatever reads the lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenmerge.eval.errors import RunFolderError

LONGEST_LINE = 1_000_000  # bytes
# Line ends to Python's splitlines and to some editors, and plain characters to JSON: prompts may hold them.
LINE_ENDS = ("\x85", "\u2028", "\u2029")


def to_line(value: Any) -> str:
    """A value as one line of text, without its end."""
    line = json.dumps(value, ensure_ascii=False)
    for character in LINE_ENDS:
        line = line.replace(character, f"\\u{ord(character):04x}")
    return line


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file with their ends, one at a time, so that a file of any size takes little memory."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise RunFolderError(f"{path} has a line of {LONGEST_LINE:,} bytes, which no run writes: delete it.")
            yield line


def read_lines(path: Path) -> list[Any]:
    """The values of a file that was written whole; none where there is no file."""
    try:
        return [json.loads(line) for line in lines_of(path) if line.strip()] if path.exists() else []
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged ({error}): use another --out.") from None
