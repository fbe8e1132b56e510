"""`explain`: from a name to a table, without weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_runs import Run


def test_sd15_at_a_given_size(run: Run) -> None:
    outcome = run("explain", "--model", "sd15", "--size", "768x512", "--ratio", "0.5", "--json")
    assert outcome.code == 0, outcome.err
    (model,) = json.loads(outcome.out)["models"]
    assert model["model"] == "UNet2DConditionModel"
    first = model["stacks"][0]
    assert first["grid"] == [64, 96]  # height first: 512 px high, 768 px wide
    assert (first["tokens"], first["kept"]) == (6144, 3072)
    assert 0 < model["multiply_adds"]["saving"] < 1


def test_the_table_names_blocks_and_saving(run: Run) -> None:
    outcome = run("explain", "--model", "tiny-random", "--method", "toma-stack", "--ratio", "0.75")
    assert outcome.code == 0, outcome.err
    assert "4,096 -> 1,024" in outcome.out
    assert "merged per stack" in outcome.out


def test_a_folder_is_explained_from_its_configuration_alone(run: Run, pipeline_copy: Path) -> None:
    for weights in pipeline_copy.rglob("*.safetensors"):
        weights.unlink()
    of_folder = run("explain", "--model", str(pipeline_copy), "--json")
    of_name = run("explain", "--model", "tiny-random", "--json")
    assert of_folder.code == 0, of_folder.err
    assert json.loads(of_folder.out) == json.loads(of_name.out)


def test_a_larger_batch_is_more_work(run: Run) -> None:
    work = {}
    for batch in ("1", "2"):
        outcome = run("explain", "--model", "tiny-random", "--batch", batch, "--json")
        work[batch] = json.loads(outcome.out)["models"][0]["multiply_adds"]["steady"]
    # The time embedding is the only thing that two images share.
    assert work["2"] == pytest.approx(2 * work["1"], rel=1e-3)


def test_measure_shows_the_times_that_the_choice_rests_on(run: Run) -> None:
    # Self-attention over 4,096 tokens at a quarter of them: faster on any machine, by far.
    only = ("--set", "parts=self", "--set", "min_tokens=4096")
    outcome = run("explain", "--model", "tiny-random", "--measure", "--ratio", "0.75", *only, "--json")
    assert outcome.code == 0, outcome.err
    (timing,) = json.loads(outcome.out)["timings"]
    assert (timing["tokens"], timing["part"], timing["worthwhile"]) == (4096, "all", True)
    assert 0 < timing["merged"] < timing["unmerged"]


@pytest.mark.parametrize(("name", "near"), [("sdxll", "sdxl"), ("SD-XL", "sdxl"), ("emojisd", "emoji-sd")])
def test_an_unknown_name_suggests_the_nearest(name: str, near: str, run: Run) -> None:
    outcome = run("explain", "--model", name)
    assert outcome.code == 2
    assert f"there is no model folder {name}: did you mean {near}?" in outcome.err
    assert "or an architecture that `tokenmerge explain --help` names." in outcome.err
