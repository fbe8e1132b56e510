"""Texts that a command writes into a document, between two marks, and that `make check` holds against what they say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenmerge.errors import UsageError
from tokenmerge.runtime.files import write_atomically


def between_marks(document: str, mark: str, text: str, path: Path) -> str:
    """The document with `text` in the place of whatever stands between the marks of that name."""
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(end) < document.index(begin):
        raise UsageError(f"{path} needs the lines {begin} and {end}, once each and in this order.")
    head, _, rest = document.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}"


def update(path: Path, mark: str, text: str, check: bool) -> bool:
    """Put a text between the marks of a file, or with `check` only look; True if the file was as it should be."""
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    after = between_marks(before, mark, text, path)
    if after != before and not check:
        write_atomically(path, after)
    return after == before


def main(module: str, mark: str, make: Callable[[], str], arguments: Sequence[str] | None = None) -> int:
    """`python -m module`: print the text; with a file, write it there; with --check, fail if the file differs."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=sys.modules[make.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", type=Path, help=f"a Markdown file with {mark} marks; none prints")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the file is out of date")
    options = parser.parse_args(arguments)
    try:
        text = make()
        if options.file is None:
            print(text)
        elif not update(options.file, mark, text, options.check) and options.check:
            print(f"{options.file} is out of date: run python -m {module} {options.file}", file=sys.stderr)
            return 1
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
