"""Tables and sentences that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

WIDTH = 100
LEAST = 16  # of a column that is wrapped
GAP = 2  # between two columns


def fitted(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """A table of at most 100 columns: the widest column is wrapped, down to a readable width.

    >>> print(fitted([["2,048", "word " * 21]], ["tokens", "note"]))
    tokens    note
    --------  -----------------------------------------------------------------------------------------
    2,048     word word word word word word word word word word word word word word word word word word
              word word word
    """
    # tabulate gives a header two columns more than it needs.
    widths = [max(len(header) + 2, *map(len, cells)) for header, *cells in zip(headers, *rows, strict=True)]
    widest = widths.index(max(widths))
    others = sum(width for index, width in enumerate(widths) if index != widest) + GAP * (len(widths) - 1)
    room = max(LEAST, WIDTH - others)
    # Wrapped here: tabulate, which can do it too, takes cells such as "2,048" for numbers and fails.
    wrapped = [
        ["\n".join(textwrap.wrap(cell, room)) if index == widest else cell for index, cell in enumerate(row)]
        for row in rows
    ]
    return tabulate(wrapped, headers, tablefmt="simple", disable_numparse=True)


def filled(text: str) -> str:
    """The text with lines of at most 100 columns; what a line goes on with is indented.

    >>> print(filled("schedule: " + "word " * 20))
    schedule: word word word word word word word word word word word word word word word word word word
      word word
    """
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        if len(line) > WIDTH
        else line
        for line in text.splitlines()
    )
