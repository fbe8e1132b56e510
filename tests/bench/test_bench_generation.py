"""Whole generations: what is counted is what runs, and what random weights cannot show is refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tokenmerge.accelerations.named import named_acceleration
from tokenmerge.bench.cost import shadow_of
from tokenmerge.bench.generation import Contestant, check_contestants, generation_multiply_adds
from tokenmerge.bench.subject import Subject
from tokenmerge.cli import bench as command
from tokenmerge.errors import ConfigError, UsageError

STEPS = 6


def contestant(name: str, **options: Any) -> Contestant:
    return Contestant(name, named_acceleration(name, options))


def test_the_meta_device_counts_what_the_model_executes(subject: Subject) -> None:
    shadow = shadow_of(subject)
    for each in (
        Contestant("none"),
        contestant("deepcache", cache_interval=3),
        contestant("tomesd-package", ratio=0.5),
    ):
        executed = generation_multiply_adds(subject, each, STEPS)
        assert executed == generation_multiply_adds(shadow, each, STEPS)


def test_fewer_steps_are_fewer_by_their_share(subject: Subject) -> None:
    shadow = shadow_of(subject)
    plain = generation_multiply_adds(shadow, Contestant("none"), STEPS)
    assert plain == 2 * generation_multiply_adds(shadow, contestant("fewer-steps", fraction=0.5), STEPS)
    assert generation_multiply_adds(shadow, contestant("preset", preset="fast"), STEPS) < plain


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("first-block-cache", "decides by the image"), ("mag-cache", "decides by the image"), ("taylorseer", "UNet")],
)
def test_what_cannot_be_shown_here_is_refused(subject: Subject, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_contestants([contestant(name)], subject)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["bench", *words]))


def test_the_command_times_in_turns_and_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "generation.json"
    words = [
        "--model",
        "tiny-random",
        "--size",
        "64",
        "--repeats",
        "2",
        "--out",
        str(out),
        "generation",
        "--steps",
        "4",
    ]
    assert run(*words, "--accelerate", "fewer-steps:fraction=0.5", "--accelerate", "deepcache:cache_interval=2") == 0
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["fewer-steps:fraction=0.5"]["saved"] == 2
    assert rows["deepcache:cache_interval=2"]["saved"] > 1
    assert all(len(row["seconds"]) == 2 for row in rows.values())
    assert "| fewer-steps:fraction=0.5 " in capsys.readouterr().out


def test_counting_alone_builds_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model",
        "flux",
        "--blocks",
        "1,1",
        "--size",
        "256",
        "--json",
        "generation",
        "--count-only",
        "--steps",
        "4",
    ]
    assert run(*words, "--accelerate", "taylorseer-lite:cache_interval=2,disable_cache_before_step=1") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[1]["saved"] > 1.2
    assert "speedup" not in rows[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--accelerate", "deepcach"], "--accelerate deepcach: .*did you mean deepcache"),
        (["--accelerate", "deepcache", "--accelerate", "deepcache"], "twice"),
        (["--steps", "0"], "--steps is 0"),
    ],
)
def test_wrong_words_are_a_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run("--model", "sd15", "--size", "64", "generation", "--count-only", *words)
