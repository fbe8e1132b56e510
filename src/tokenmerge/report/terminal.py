"""Tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

WIDTH = 100
LEAST = 16  # of a column that is wrapped
GAP = 2  # between two columns


def fitted(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """A table of at most 100 columns: the widest column is wrapped, down to a readable width.

    >>> print(fitted([["a", "word " * 30]], ["", "note"]))
        note
    --  ----------------------------------------------------------------------------------------------
    a   word word word word word word word word word word word word word word word word word word word
        word word word word word word word word word word word
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    widest = widths.index(max(widths))
    others = sum(max(2, width) for index, width in enumerate(widths) if index != widest) + GAP * (len(widths) - 1)
    widths[widest] = max(LEAST, min(widths[widest], WIDTH - others))
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, maxcolwidths=[max(2, w) for w in widths])
