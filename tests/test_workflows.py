"""What runs on GitHub: it parses, and what it calls exists. Its jobs themselves cannot be run here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
FORMS = [file for file in sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml")) if file.name != "config.yml"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
PINNED = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8").lower(), re.MULTILINE))


def jobs_of(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as True.
    assert {"name", True, "permissions", "jobs"} <= set(read)
    jobs: dict[str, Any] = read["jobs"]
    return jobs


def commands_of(file: Path) -> list[str]:
    steps = [step for job in jobs_of(file).values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_what_it_calls_exists(file: Path) -> None:
    for line in commands_of(file):
        for target in re.findall(r"\bmake ([a-z-]+)", line):
            assert target in TARGETS, line
        for path in re.findall(r"(?<![\w/])(?:tests|src|\.ci)/[\w./]+", line):
            assert (ROOT / path).exists(), line
        for named in re.findall(r"\[([a-z,]+)\]", line):
            assert set(named.split(",")) <= set(EXTRAS), line


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_pinned_installs_name_pinned_packages(file: Path) -> None:
    for line in commands_of(file):
        if asked := re.search(r"-c constraints\.txt (.+?)(?: #|$)", line):
            names = {name for name in asked[1].split() if re.fullmatch(r"[a-z][\w-]*", name)}
            assert names <= PINNED, names - PINNED


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_every_job_ends_and_every_step_does_one_thing(file: Path) -> None:
    for name, job in jobs_of(file).items():
        assert "timeout-minutes" in job, name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            assert "@" in step.get("uses", "@"), step


def test_it_is_tried_on_three_systems() -> None:
    jobs = jobs_of(FOLDER / "workflows" / "ci.yml")
    systems = {job["runs-on"] for job in jobs.values()}
    systems |= {system for job in jobs.values() for system in job.get("strategy", {}).get("matrix", {}).get("os", [])}
    assert {"ubuntu-latest", "macos-latest", "windows-latest"} <= systems


def test_a_release_is_published_without_a_password() -> None:
    text = (FOLDER / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = jobs_of(FOLDER / "workflows" / "release.yml")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert "twine check --strict" in text
    assert not re.search(r"password:|[^-]token:|secrets\.", text)


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_issues_ask_for_what_doctor_prints(file: Path) -> None:
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = {field["id"]: field for field in form["body"]}
    assert "tokenmerge doctor" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"] is True
