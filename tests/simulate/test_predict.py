"""Whole generations of real architectures, predicted without a GPU."""

from __future__ import annotations

import json

import pytest

from tokenmerge import SkipSteps, ToMA
from tokenmerge.cli.main import main
from tokenmerge.cli.predict import table
from tokenmerge.engine.session import Session
from tokenmerge.models import family_of
from tokenmerge.models.published import build
from tokenmerge.presets import preset
from tokenmerge.report.explain import explain
from tokenmerge.simulate.devices import read_devices
from tokenmerge.simulate.predict import (
    Generation,
    Prediction,
    default_batch,
    fewer_steps,
    merged,
    predict,
    subject_for,
    tomesd_package,
    unmerged,
)


@pytest.fixture(scope="module")
def subject():
    return subject_for(build("sd15"), (512, 512), 2)


@pytest.fixture(scope="module")
def base(subject) -> Generation:
    return unmerged(subject, 10)


def test_half_of_the_steps_take_half_of_the_time(base: Generation) -> None:
    _, half = predict([base, fewer_steps(base, 0.5)], {"A100": read_devices()["A100"]})
    assert half.eager_speedup == pytest.approx(2)
    assert half.graph_speedup == pytest.approx(2)
    assert half.multiply_adds_saved == pytest.approx(2)


def test_multiply_adds_are_those_that_explain_counts(subject, base: Generation) -> None:
    config = ToMA.paper_tile(0.5)
    generation = merged(subject, config, 10, "paper")
    session = Session(subject.model, family_of(subject.model), config)
    counted = explain([session], size=(512, 512), batch=2, steps=10).models[0].multiply_adds
    assert base.multiply_adds == 10 * counted.unmerged
    assert generation.multiply_adds == pytest.approx(10 * counted.average, rel=1e-3)


def test_the_model_comes_back_without_a_hook(subject) -> None:
    merged(subject, preset("balanced", subject.model), 4, "balanced")
    assert not subject.model._forward_pre_hooks
    assert not subject.model._forward_hooks


def test_skipped_steps_cost_next_to_nothing(subject, base: Generation) -> None:
    half = merged(subject, SkipSteps(step_speedup=2.0), 10, "skip")
    computed = sum(count for count, kernels in half.steps if len(kernels) > 10)
    assert 5 <= computed < 10
    assert half.launches == pytest.approx(base.launches * computed / 10, rel=0.02)


def test_the_package_launches_more_kernels_than_the_model_alone(subject, base: Generation) -> None:
    assert tomesd_package(subject, 10).launches > 1.1 * base.launches


def test_guidance_doubles_the_batch_unless_it_is_built_in(subject) -> None:
    assert default_batch(subject.model) == 2
    assert default_batch(build("flux", blocks=(1, 1))) == 1


def test_a_published_time_is_met() -> None:
    """cache-dit reports 24.85 s for FLUX.1-dev on an L20: 1024 px, 28 steps, with text encoding and decoding."""
    flux = unmerged(subject_for(build("flux"), (1024, 1024), 1), 28)
    (found,) = predict([flux], {"L20": read_devices()["L20"]})
    assert found.eager_seconds == pytest.approx(24.85, rel=0.1)


def test_the_command_prints_a_labelled_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["predict", "--model", "sd15", "--steps", "8", "--methods", "toma-tile:0.5", "--devices", "A100,H100"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SIMULATED, not measured")
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated"] is True
    assert len(found["predictions"]) == 2 * 3


def test_many_devices_stand_in_tables_that_fit_a_terminal() -> None:
    names = ["RTX3090", "RTX4090", "A100", "H100", "L20"]
    shown = table([Prediction("unmerged", name, 0.9912, 0.9849, 1, 1, 1, 1_995, False) for name in names])
    assert max(map(len, shown.splitlines())) <= 100
    assert [word for word in shown.split() if word in names] == names


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--methods", "balanced:0.5"], "leave it out"),
        (["--methods", "toma-tyle"], "did you mean toma-tile"),
        (["--methods", "balancd"], "did you mean balanced"),
        (["--methods", "tomesd-package:7"], "at most 0.75"),
        (["--methods", "tomesd-package:half"], "at most 0.75"),
        (["--devices", "A100,A100"], "names one thing twice"),
        (["--methods", ""], "is empty"),
        (["--methods", "tomesd-package", "--model", "flux"], "cannot be simulated here"),
    ],
)
def test_wrong_options_are_sentences(option: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "sd15", "--steps", "2", *option]) == 2
    assert says in capsys.readouterr().err
