"""Text that comes from anybody, made fit to be shown: it cannot move a cursor, clear a screen or turn itself round."""

from __future__ import annotations

import unicodedata

# Format characters that show the text around them in another order.
TURNING = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ORDINARY = "\t\n"


def is_control(character: str) -> bool:
    """Whether a character changes what shows it (a terminal, say) instead of being shown."""
    return (unicodedata.category(character) in ("Cc", "Cs") and character not in ORDINARY) or character in TURNING


def shown_plainly(text: str) -> str:
    r"""The text with every control character replaced by its number.

    >>> shown_plainly("red\x1b[2J apple")
    'red\\x1b[2J apple'
    """
    return "".join(ascii(character)[1:-1] if is_control(character) else character for character in text)
