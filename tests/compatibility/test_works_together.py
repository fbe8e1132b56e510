"""Merging works together with what else people use, or says why it does not; and the table says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from row import Row
from rows import ROWS
from table import COMPILED, FILE, Elsewhere, line_of, lines_in, name_in
from tiny_models import DIFFUSERS
from trial import try_row

OUT_OF_DATE = "docs/compatibility.md is out of date: run python tests/compatibility/table.py"
WRITTEN = lines_in(FILE.read_text(encoding="utf-8"))


def rows() -> list[Any]:
    """Every row. `make test` leaves long ones out, and tries each of the others on one kind of model, in turn."""
    features: dict[tuple[str, str], list[Row]] = {}
    for row in ROWS:
        features.setdefault((row.group, row.name), []).append(row)
    quick = {kinds[number % len(kinds)] for number, kinds in enumerate(features.values())}
    return [
        pytest.param(row, id=str(row), marks=() if row in quick and not row.long else pytest.mark.long) for row in ROWS
    ]


@pytest.mark.parametrize("row", rows())
def test_row(row: Row) -> None:
    if row.not_on and DIFFUSERS in SpecifierSet(row.not_on):
        pytest.skip(row.why_not)
    outcomes = try_row(row)
    assert tuple(scope for scope, outcome in outcomes.items() if outcome.works) == row.scopes
    assert line_of(row, outcomes) in WRITTEN, OUT_OF_DATE


@pytest.mark.parametrize("row", COMPILED, ids=lambda row: row.name)
def test_row_with_a_file_of_its_own(row: Elsewhere) -> None:
    assert row.line in WRITTEN, OUT_OF_DATE
    source = (Path(__file__).parents[2] / row.file).read_text(encoding="utf-8")
    assert all(f"def {test}(" in source for test in row.tests)


def test_the_table_has_these_rows_and_no_others() -> None:
    names = [name_in(line) for line in WRITTEN]
    assert names == [(row.group, row.name, row.on) for row in (*ROWS, *COMPILED)], OUT_OF_DATE
    assert len(set(names)) == len(names)
