"""Runs commands in this process, and keeps a real pipeline on disk for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_runs import Outcome, Run

from tokenmerge.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """tokenmerge with these words, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run_command(*words: str) -> Outcome:
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def pipeline_copy(saved_pipeline: Path, tmp_path: Path) -> Path:
    """A pipeline on disk that a test may damage."""
    return Path(shutil.copytree(saved_pipeline, tmp_path / "copy"))
