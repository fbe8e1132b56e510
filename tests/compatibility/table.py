"""The table of what merging works together with, from what the checks saw.

python tests/compatibility/table.py             run every row and write docs/compatibility.md
python tests/compatibility/table.py training    run the rows that have the word in their names, and keep other lines

Every test of a row compares what it saw with the row's line in that file, so a table that is out of date fails.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import torch
from checks import SCOPES
from row import Row
from rows import ROWS
from trial import Outcome, try_row

FILE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- compatibility:begin -->", "<!-- compatibility:end -->"
HEADERS = ("", "with", "on", *SCOPES, "remarks")


@dataclass(frozen=True)
class Elsewhere:
    """A row whose checks have a file of their own: merged images, and unmerged ones, are those of the eager model."""

    group: str
    name: str
    on: str
    file: str
    tests: tuple[str, ...]
    scopes: tuple[str, ...]  # that the tests try

    @property
    def line(self) -> str:
        remark = f"tested in [{self.file}](../{self.file})"
        cells = ["as eager" if scope in self.scopes else "not tried" for scope in SCOPES]
        return _line([self.group, self.name, self.on, *cells, remark])


COMPILED = [
    Elsewhere(
        "`torch.compile`",
        "regional",
        "SDXL, Flux, Qwen-Image",
        "tests/test_compile.py",
        (
            "test_regional_compile_has_no_breaks_and_a_bounded_number_of_graphs",
            "test_merging_is_noticed_by_what_was_compiled_before",
        ),
        ("site", "stack"),
    ),
    Elsewhere(
        "`torch.compile`",
        "whole",
        "PixArt, Flux",
        "tests/test_compile.py",
        ("test_whole_model_compile_gives_the_same_image", "test_merging_is_noticed_by_what_was_compiled_before"),
        ("site",),
    ),
]


def line_of(row: Row, outcomes: dict[str, Outcome]) -> str:
    cells = [
        f"{outcome.full:.0f} → {outcome.merged:.0f}" if outcome.works else "raises" for outcome in outcomes.values()
    ]
    return _line([row.group, row.name, row.on, *cells, "; ".join(_remarks(row, outcomes))])


def _remarks(row: Row, outcomes: dict[str, Outcome]) -> list[str]:
    refusals: dict[str, list[str]] = {}
    for scope, outcome in outcomes.items():
        if not outcome.works:
            refusals.setdefault(outcome.refusal, []).append(scope)
    raised = [f'{", ".join(scopes)}: "{refusal}"' for refusal, scopes in refusals.items()]
    return [row.remark, *raised] if row.remark else raised


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def lines_in(text: str) -> list[str]:
    """The lines of the table in a document, without its head."""
    return text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]


def with_lines(text: str, lines: list[str]) -> str:
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    head = [_line(list(HEADERS)), _line(["---"] * len(HEADERS))]
    return "\n".join([f"{before}{BEGIN}", *head, *lines, f"{END}{after}"])


def name_in(line: str) -> tuple[str, ...]:
    return tuple(line.removeprefix("| ").split(" | ")[:3])


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    text = FILE.read_text(encoding="utf-8")
    known = {name_in(line): line for line in lines_in(text)} if words else {}
    lines = []
    for row in ROWS:
        line = known.get((row.group, row.name, row.on))
        if line is None or any(word in str(row) for word in words):
            print(row, file=sys.stderr, flush=True)
            torch.manual_seed(0)
            line = line_of(row, try_row(row))
        lines.append(line)
    lines += [row.line for row in COMPILED]
    FILE.write_text(with_lines(text, lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
