"""Texts between marks are written once, found again, and missed when they are gone."""

from pathlib import Path

import pytest

from tokenmerge.errors import UsageError
from tokenmerge.runtime import marked

BEGIN, END = "<!-- fruit:begin -->", "<!-- fruit:end -->"


def fruit() -> str:
    return "| apple |"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    return path


def test_only_what_stands_between_the_marks_is_replaced(document: Path) -> None:
    assert marked.main("fruits", "fruit", fruit, [str(document)]) == 0
    assert document.read_text() == f"# Before\n\n{BEGIN}\n\n| apple |\n\n{END}\n\nAfter.\n"


def test_check_fails_until_it_is_written_and_changes_nothing(document: Path, capsys: pytest.CaptureFixture) -> None:
    before = document.read_text()
    assert marked.main("fruits", "fruit", fruit, [str(document), "--check"]) == 1
    assert "out of date: run python -m fruits" in capsys.readouterr().err
    assert document.read_text() == before
    marked.main("fruits", "fruit", fruit, [str(document)])
    assert marked.main("fruits", "fruit", fruit, [str(document), "--check"]) == 0


def test_without_a_file_it_is_printed(capsys: pytest.CaptureFixture) -> None:
    assert marked.main("fruits", "fruit", fruit, []) == 0
    assert capsys.readouterr().out == "| apple |\n"


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert marked.main("fruits", "fruit", fruit, [str(tmp_path / "none.md")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_file_without_marks_is_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="once each and in this order"):
        marked.between_marks(text, "fruit", "text", Path("README.md"))
