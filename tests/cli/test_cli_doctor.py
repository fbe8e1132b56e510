"""`doctor`: what it finds, and that its test can fail."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from command_runs import Run

from tokenmerge.cli import doctor


def test_it_says_what_is_installed_in_short_lines(run: Run) -> None:
    outcome = run("doctor", "--no-test", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    assert f"torch {torch.__version__}" in outcome.out
    assert "emoji-sd" in outcome.out
    assert "[web]" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: ["torch>=2", 'no-such-package>=1; extra == "web"'])
    found = doctor.installed(torch.device("cpu")) | {"dtype": "float32"}
    assert found["missing"]["web"] == ["no-such-package"]
    assert "lacks no-such-package, for tokenmerge serve: pip install 'tokenmerge[web]'" in doctor.as_text(found)


def test_the_self_test_passes(run: Run) -> None:
    outcome = run("doctor", "--json", "--device", "cpu")
    assert outcome.code == 0, outcome.out
    assert json.loads(outcome.out)["test"]["passed"] is True


def test_the_self_test_notices_that_nothing_is_merged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(pipe: object):  # type: ignore[no-untyped-def]
        yield

    monkeypatch.setattr("tokenmerge.api.merged", nothing)
    monkeypatch.setattr(doctor, "TEST_STEPS", 1)
    outcome = run("doctor", "--device", "cpu")
    assert outcome.code == 1
    assert "merging changed nothing" in outcome.out
