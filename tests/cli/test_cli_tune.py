"""`tune`, and the commands that take what it writes; `--keep` with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_runs import SMALL, Run
from PIL import Image

import tokenmerge as tm
from tokenmerge.runtime.generation import ImageRequest
from tokenmerge.runtime.pipelines import load_pipeline


@pytest.fixture(autouse=True)
def short_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting the work of every rung takes a while."""
    monkeypatch.setattr("tokenmerge.autotune.tune.default_ladder", lambda: [tm.ToMA.paper()])


def pixels(file: Path | str) -> np.ndarray:
    return np.asarray(Image.open(file))


def test_what_is_found_is_written_and_used(run: Run, tmp_path: Path) -> None:
    outcome = run("tune", "a cat", "a dog", *SMALL, "--min-psnr", "1", "--out", "config.json", "--json")
    assert outcome.code == 0, outcome.err
    reported = json.loads(outcome.out)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved == reported["config"] == reported["trials"][-1]["config"]
    assert len(reported["unmerged_seconds"]) == 2
    assert run("generate", "a cat", *SMALL, "--config", "config.json").code == 0
    loaded = load_pipeline("tiny-random", "cpu")
    with tm.merged(loaded.pipe, tm.MergeConfig.from_dict(saved)):
        expected, _ = loaded.generate(ImageRequest("a cat", steps=2, size=(256, 256)))
    assert (pixels("image.png") == np.asarray(expected)).all()


def test_prompts_come_from_a_file_too_and_a_table_is_printed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a cat\n\na dog\n")
    outcome = run("tune", "--prompts", "prompts.txt", *SMALL, "--min-psnr", "1")
    assert outcome.code == 0, outcome.err
    assert "keeps 1 dB" in outcome.out
    assert "measured: ToMA(" in outcome.out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ((), "0 prompts were given"),
        (("a cat", "--min-psnr", "high"), "--min-psnr is 'high'"),
        (("a cat", "--prompts", "nowhere.txt"), "--prompts nowhere.txt cannot be read"),
        (("a cat", "--seeds", "0"), "--seeds is '0'"),
        (("a cat", "--out", "."), "--out is '.', a folder"),
    ],
)
def test_wrong_words_are_sentences(run: Run, words: tuple[str, ...], reported: str) -> None:
    outcome = run("tune", *words)
    assert outcome.code == 2
    assert reported in outcome.err


def test_a_budget_that_nothing_keeps_names_the_nearest(run: Run) -> None:
    outcome = run("tune", "a cat", "--size", "256", "--steps", "1", "--model", "tiny-random", "--min-psnr", "99.9")
    assert outcome.code == 2
    assert "keeps 99.9 dB: the nearest is ToMA(" in outcome.err


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "holds no method"),
        ('{"method": "ToMA", "ratio": 2}', "ratio is 2"),
        ('{"method": "NoSuchMethod"}', "'NoSuchMethod' is not known"),
    ],
)
def test_a_broken_config_is_a_sentence(run: Run, tmp_path: Path, text: str, reported: str) -> None:
    (tmp_path / "config.json").write_text(text)
    outcome = run("generate", "a cat", *SMALL, "--config", "config.json")
    assert outcome.code == 2
    assert reported in outcome.err


def test_a_config_comes_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tm.TileMean().to_dict()))
    outcome = run("generate", "a cat", *SMALL, "--config", "config.json", "--ratio", "0.3")
    assert outcome.code == 2
    assert "leave out --method, --ratio and --set" in outcome.err


def test_a_ratio_that_changes_can_be_given_and_is_shown(run: Run) -> None:
    outcome = run("compare", "a cat", *SMALL, "--ratio", "[0.25, 0.75]", "--out", "pair")
    assert outcome.code == 0, outcome.err
    assert "ratio 0.25 > 0.75" in outcome.out


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_a_mask_keeps_what_is_white(run: Run, tmp_path: Path, command: str) -> None:
    mask = np.zeros((64, 64), dtype=np.uint8)
    mask[:, :32] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    image = "image.png" if command == "generate" else "compare/merged.png"
    assert run(command, "a cat", *SMALL, "--keep", "mask.png").code == 0
    kept = pixels(image)
    assert run(command, "a cat", *SMALL).code == 0
    assert (kept != pixels(image)).any()
    loaded = load_pipeline("tiny-random", "cpu")
    with tm.merged(loaded.pipe, tm.TileMean(), keep=mask):
        expected, _ = loaded.generate(ImageRequest("a cat", steps=2, size=(256, 256)))
    assert (kept == np.asarray(expected)).all()


def test_a_mask_that_is_none_is_a_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mask.png").write_text("no image")
    outcome = run("generate", "a cat", *SMALL, "--keep", "mask.png")
    assert outcome.code == 2
    assert "cannot be read as an image" in outcome.err
    outcome = run("generate", "a cat", *SMALL, "--keep", "mask.png", "--method", "none")
    assert outcome.code == 2
