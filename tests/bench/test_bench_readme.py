from argparse import Namespace
from pathlib import Path

import pytest
from made_results import model_result

from tokenmerge.cli.bench import run
from tokenmerge.errors import UsageError


@pytest.fixture
def table(tmp_path: Path) -> Namespace:
    """A folder with one result and a README file that has no table yet."""
    (tmp_path / "benchmarks").mkdir()
    model_result().save(tmp_path / "benchmarks" / "sd15.json")
    page = tmp_path / "benchmarks" / "README.md"
    page.write_text("# Before\n\n<!-- benchmarks:begin -->\nold\n<!-- benchmarks:end -->\n\nAfter.\n")
    return Namespace(bench="table", results=tmp_path / "benchmarks", check=False)


def test_writes_the_tables_and_finds_them_up_to_date(table: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(table) == 0
    full = (table.results / "README.md").read_text()
    assert full.startswith("# Before\n")
    assert full.endswith("\n\nAfter.\n")
    assert "\nold\n" not in full
    assert "| blocks-deleted" in full
    assert "`sd15.json`" in full
    capsys.readouterr()
    table.check = True
    assert run(table) == 0
    assert capsys.readouterr().out == ""


def test_check_finds_a_changed_result_and_changes_nothing(table: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    run(table)
    before = (table.results / "README.md").read_text()
    changed = model_result()
    changed.measurements[0].times["steady"] = [80.0]
    changed.save(table.results / "sd15.json")
    table.check = True
    assert run(table) == 1
    assert "is out of date: run `tokenmerge bench table`" in capsys.readouterr().out
    assert (table.results / "README.md").read_text() == before


def test_a_folder_without_results_is_a_sentence(table: Namespace) -> None:
    (table.results / "sd15.json").unlink()
    with pytest.raises(UsageError, match="holds no result files"):
        run(table)
