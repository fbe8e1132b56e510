"""Every command of README and docs is executed as it stands. Two lists name the exceptions, with place or reason."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

import tokenmerge
from tokenmerge.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
# What a command may read, or write its results into: copied, so that no test changes the repository.
READ = ("README.md", "benchmarks", "examples")
WIDTH = 100
# Commands start in another folder: they must import the package that is tested here, and no other installed one.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tokenmerge.__file__).parents[1])}

# Commands that something else executes: the file that does, and the words in it that do.
ELSEWHERE = {
    "make demo": (".ci/run", "make demo"),
    "make test": (".ci/run", "make test-all"),
    "make docs": (".ci/run", "make docs"),
    "make check": (".ci/run", "make check"),
    "make test-comfyui": (".ci/run", "make test-comfyui"),
    # The wheel of this folder, by `make package`.
    "pip install .": ("Makefile", "$$(ls $(CURDIR)/dist/*.whl)"),
    "pip install .[web]": ("Makefile", "dist/*.whl)[web]"),
    # On tiny models instead of full-size ones.
    "tokenmerge bench --model sdxl --submit sdxl.json": ("tests/bench/test_bench_submit.py", "submission("),
    "tokenmerge explain --model sdxl --measure": ("tests/cli/test_cli_explain.py", "--measure"),
    "tokenmerge compare --repeats 5": ("tests/cli/test_cli_compare.py", "--repeats"),
    # Every row that it writes is a test.
    "python tests/compatibility/table.py": ("tests/compatibility", "def test_"),
}
# Commands that nothing executes by itself, and why.
BY_HAND = {
    "tokenmerge bench --compile": "times a compiled Stable Diffusion for many minutes",
    "python benchmarks/foreign/measure.py terrain terrain.json": "needs two packages of others, and many minutes",
    "make screenshots": "generates for minutes, and its result is looked at",
    "python tests/integrations/comfyui/take_screenshots.py": "the same, in ComfyUI's environment",
    "pip install peft": "installs a package of others; the tests have it",
    "pip install .[ray]": "the same",
    "cd ComfyUI/custom_nodes": "needs the user's ComfyUI; tests/integrations loads the folder as ComfyUI does",
    "git clone <this repository> tokenmerge": "the same",
    "pip install -r tokenmerge/requirements.txt": "the same",
}
# The same commands once more in every test run, with what makes them short, and what they must show. Words given twice
# count as given last. `tune` is in tests/cli/test_cli_tune.py, `bench` in tests/bench/test_bench_command.py.
TINY = ("--model", "tiny-random", "--size", "128", "--steps", "6", "--device", "cpu")
SMALL = {"compare": TINY, "explain": (), "predict": ("--steps", "6", "--methods", "balanced")}
SHOWS = {"compare": "side_by_side.png", "explain": "% saved, at best", "predict": "SIMULATED, not measured"}
# Names of a command in running text, and patterns with a NAME to fill in.
MENTIONED = re.compile(r"tokenmerge [a-z]+|tokenmerge [a-z]+ --model NAME")
BLOCK, INLINE = re.compile(r"```sh\n(.*?)```", re.DOTALL), re.compile(r"`((?:tokenmerge|python|make|pip) [^`]+)`")


@dataclass(frozen=True)
class Script:
    """Lines that are run one after the other, in one folder."""

    page: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.lines[0]}"


def plain(line: str) -> str:
    """The command without its comment and quotes; "" for a line that has none."""
    return " ".join(shlex.split(line, comments=True))


def found_scripts() -> list[Script]:
    scripts = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [block.replace("\\\n", " ").splitlines() for block in BLOCK.findall(text)]
        running = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        inline = [[" ".join(line.split())] for line in INLINE.findall(running)]
        for lines in [*blocks, *inline]:
            kept = tuple(line for line in lines if plain(line) and not MENTIONED.fullmatch(line))
            if kept:
                scripts.append(Script(page.name, kept))
    return scripts


def scripts_here() -> list[Script]:
    """Those lines that run here. A command that several pages have runs once."""
    seen = set(ELSEWHERE | BY_HAND)
    scripts = []
    for script in found_scripts():
        lines = tuple(line for line in script.lines if plain(line) not in seen)
        seen |= set(map(plain, lines))
        if lines:
            scripts.append(Script(script.page, lines))
    return scripts


SERVER = "tokenmerge serve"
SHORT = {"tokenmerge doctor", "tokenmerge serve", "python examples/sdxl.py --tiny"}


def marked(script: Script) -> object:
    short = all(plain(line) in SHORT for line in script.lines)
    return pytest.param(script, id=str(script), marks=[] if short else [pytest.mark.long])


def command_of(line: str, folder: Path) -> list[str]:
    """The command as a shell would start it, with the Python that runs this test."""
    first, *rest = shlex.split(line, comments=True)
    starts = {"tokenmerge": [sys.executable, "-m", "tokenmerge.cli.main"], "python": [sys.executable]}
    words = []
    for word in rest:
        words += sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else [word]
    return [*starts[first], *words]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of the repository that commands read."""
    for name in READ:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, tmp_path / "docs")
    return tmp_path


def check_output(line: str, out: str, err: str) -> None:
    """Of our own command: no remark of a library, and nothing that a terminal of 100 columns would break."""
    assert "Traceback" not in err, err
    if line.startswith("tokenmerge"):
        for noise in ("torchvision", "Warning"):
            assert noise not in err, err
        assert max(map(len, out.splitlines()), default=0) <= WIDTH, out


def heed_ctrl_c() -> None:
    """A shell lets programs that it starts in the background ignore Ctrl+C, and they hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_server(command: list[str], folder: Path) -> None:
    """Starts the page, opens it once, and ends it as Ctrl+C does."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=heed_ctrl_c,
    ) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            address = re.search(r"http://[^\s]+", said)
            assert address is not None, said
            with urllib.request.urlopen(address[0]) as answer:
                assert answer.status == 200
            server.send_signal(signal.SIGINT)
            out, err = server.communicate(timeout=60)
        finally:
            server.kill()
    assert server.returncode == 0, err
    check_output(SERVER, said + out, err)


@pytest.mark.parametrize("script", [marked(script) for script in scripts_here()])
def test_it_runs_as_it_stands(script: Script, clone: Path) -> None:
    for line in script.lines:
        command = command_of(line, clone)
        if plain(line) == SERVER:
            pytest.importorskip("gradio")
            run_server(command, clone)
            continue
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, encoding="utf-8", env=ENVIRONMENT)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        check_output(line, done.stdout, done.stderr)
        if line.endswith("simulated/presets.py"):  # nothing random in it: the committed file is what it writes
            written = json.loads((clone / "benchmarks/simulated/presets.json").read_text())
            assert written == json.loads((ROOT / "benchmarks/simulated/presets.json").read_text())


def small_commands() -> list[str]:
    """Each command of ours that the long tests run as it stands, and that a small size makes short."""
    lines = [line for script in scripts_here() for line in script.lines]
    return [line for line in map(plain_quoted, lines) if line.split()[:2] in [["tokenmerge", name] for name in SMALL]]


def plain_quoted(line: str) -> str:
    return shlex.join(shlex.split(line, comments=True))


@pytest.mark.parametrize("line", small_commands())
def test_it_runs_at_a_small_size(
    line: str, clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    words = shlex.split(line)[1:]
    assert main([*words, *SMALL[words[0]]]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= WIDTH, out
    assert SHOWS[words[0]] in out


def test_exceptions_are_commands_of_a_page() -> None:
    written = {plain(line) for script in found_scripts() for line in script.lines}
    assert set(ELSEWHERE | BY_HAND) <= written, sorted(set(ELSEWHERE | BY_HAND) - written)


@pytest.mark.parametrize("command", ELSEWHERE)
def test_it_is_run_elsewhere(command: str) -> None:
    place, proof = ELSEWHERE[command]
    files = sorted((ROOT / place).glob("*.py")) if (ROOT / place).is_dir() else [ROOT / place]
    assert any(proof in file.read_text(encoding="utf-8") for file in files), place
