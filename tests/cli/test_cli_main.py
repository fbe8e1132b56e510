"""The entry point: help, exit codes, interruption and bugs."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
from command_runs import SMALL, Run

from tokenmerge.cli import generate
from tokenmerge.cli.main import COMMANDS, build_parser


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        build_parser().parse_args(["--help"])
    assert exit_.value.code == 0
    shown = set(capsys.readouterr().out.split())
    assert {"generate", "compare", "explain", "bench", "eval"} <= shown


@pytest.mark.parametrize("command", [module.rpartition(".")[2] for module in COMMANDS])
def test_help_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["eval" if command == "evaluate" else command, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_help_needs_no_diffusers() -> None:
    code = (
        "import sys; from tokenmerge.cli.main import COMMANDS, build_parser; build_parser().format_help(); "
        "sys.exit('diffusers' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_installed_command_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "tokenmerge.cli.main", "generate"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tokenmerge: no prompt was given")
    assert "Traceback" not in done.stderr


def test_version(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    import tokenmerge

    with pytest.raises(SystemExit):
        run("--version")
    assert capsys.readouterr().out.strip() == f"tokenmerge {tokenmerge.__version__}"


@pytest.mark.parametrize("words", [(), ("paint", "a cat"), ("generate", "a cat", "--sede", "3")])
def test_words_that_are_not_understood(run: Run, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert f"`tokenmerge{' generate' if words[:1] == ('generate',) else ''} --help`" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generat", "a cat"), "command 'generat' is not known: did you mean generate?"),
        (("frobnicate",), "use one of generate, compare,"),
        (("generate", "red", "apple"), "'apple' was not understood: put a prompt of several words in quotes"),
        (("compare", "a cat", "--modle", "flux"), "did you mean --model?"),
        (("eval", "x.toml", "--out", "x", "--engine", "rya"), "--engine 'rya' is not known: did you mean ray?"),
    ],
)
def test_wrong_words_are_told_what_was_probably_meant(run: Run, words: tuple[str, ...], said: str) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert said in outcome.err


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tokenmerge", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout[:11]) == (0, "tokenmerge ")


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(run: Run, place: str) -> None:
    words = ("--debug", "generate") if place == "before" else ("generate", "--debug")
    outcome = run(*words)
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "no prompt was given" in outcome.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("some bug"), 1, "unexpected RuntimeError: some bug"),
        (type("OutOfMemoryError", (RuntimeError,), {})(), 2, "ran out of memory"),
    ],
)
def test_what_else_may_happen(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def broken(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(generate, "run", broken)
    outcome = run("generate", "a cat", *SMALL)
    assert outcome.code == code
    assert said in outcome.err
    assert "Traceback" not in outcome.err
