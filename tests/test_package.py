"""What holds for the package as a whole: light to import, pinned, and consistent with its own papers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path

import pytest

import tokenmerge

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_it_loads_little_more_than_torch() -> None:
    added = loaded_by("import tokenmerge") - loaded_by("import torch")
    heavy = {"diffusers", "transformers", "accelerate", "matplotlib", "torch._dynamo", "torch._inductor"}
    assert not added & heavy


def test_public_names_exist() -> None:
    for name in tokenmerge.__all__:
        assert getattr(tokenmerge, name) is not None


def test_it_is_typed() -> None:
    assert (Path(tokenmerge.__file__).parent / "py.typed").is_file()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_is_pinned() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    pinned = {canonical(name) for name in pins}
    project = PROJECT["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    asked = [*PROJECT["build-system"]["requires"], *project["dependencies"], *extras]
    names = {canonical(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in asked}
    assert names - {"tokenmerge"} <= pinned
    assert pins["torch"] == "2.13.0"


def test_pins_are_exact_and_from_the_index() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line), line


def test_the_stated_size_of_the_wheel_is_true() -> None:
    stated = re.search(r"The wheel is (\d+) MB", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert stated is not None
    files = [file for file in (ROOT / "src" / "tokenmerge").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    packed = sum(len(zlib.compress(file.read_bytes())) for file in files)
    assert packed / 2**20 == pytest.approx(int(stated[1]), rel=0.05)


def test_the_readme_names_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", readme)) <= targets
    assert {"demo", "test", "check"} <= targets


def test_version_is_the_same_everywhere() -> None:
    assert f"version: {tokenmerge.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {tokenmerge.__version__}" in (ROOT / "CHANGELOG.md").read_text()
