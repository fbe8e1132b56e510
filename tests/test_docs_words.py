"""README and docs are easy to read: no long sentence, and one word for one thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").glob("*.md"))]
MOST_WORDS = 25
# What the field has another word for.
AVOIDED = re.compile(r"\b(pictures?|anew|so many|whole steps?|learnt|is told|thinn\w*|for the sake)\b", re.IGNORECASE)

LEFT_OUT = re.compile(r"<!-- (\w+):begin.*?\1:end -->|```.*?```|<!--.*?-->", re.DOTALL)  # generated, code, comments
NO_PROSE = ("#", "|", "!", "<", ":::", "options:")  # headings, tables, images, directives of the API reference
ITEM = re.compile(r"(?:[-*]|\d+\.)\s+")
ABBREVIATED = re.compile(r"\b(vs|al|e\.g|i\.e|Fig)\.\s")


def paragraphs(text: str) -> list[str]:
    """Paragraphs and items of lists, each on one line."""
    found: list[list[str]] = [[]]
    for line in map(str.strip, LEFT_OUT.sub("", text).splitlines()):
        if not line or line.startswith(NO_PROSE):
            found.append([])
        elif item := ITEM.match(line):
            found.append([line[item.end() :]])
        else:
            found[-1].append(line)
    return [" ".join(lines) for lines in found if lines]


def sentences(paragraph: str) -> list[str]:
    """Code and the address of a link count as one word or none.

    >>> sentences("See [the page](a/b.md). Use `tm.apply(pipe, config)` now.")
    ['See the page.', 'Use CODE now.']
    """
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
    text = re.sub(r"`[^`]*`", "CODE", text).replace("**", "")
    return re.split(r"(?<=[.!?])\s+", ABBREVIATED.sub(r"\1 ", text))


def words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def test_a_long_sentence_is_found() -> None:
    long = "word " * MOST_WORDS + "word."
    text = f"# Title\n\nShort. {long}\n\n| {long} |\n\n```sh\n{long}\n```\n\n- {long}\n  Short.\n"
    found = [sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph)]
    assert [words(sentence) for sentence in found] == [1, MOST_WORDS + 1, MOST_WORDS + 1, 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    found = [sentence for text in paragraphs(page.read_text(encoding="utf-8")) for sentence in sentences(text)]
    assert [sentence for sentence in found if words(sentence) > MOST_WORDS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_words_are_those_of_the_field(page: Path) -> None:
    assert AVOIDED.findall(LEFT_OUT.sub("", page.read_text(encoding="utf-8"))) == []
