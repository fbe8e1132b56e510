"""Experiments, prompts and run folders made by a stranger: they stay in their folder, and ask for bounded amounts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmerge.cli.main import _is_out_of_memory, main
from tokenmerge.eval.engine import LocalEngine
from tokenmerge.eval.errors import ExperimentError, MetricUnavailable, RunFolderError
from tokenmerge.eval.experiment import parse_experiment, read_experiment
from tokenmerge.eval.image_maker import ImageMaker
from tokenmerge.eval.metrics.inception import load_inception
from tokenmerge.eval.metrics.vision import load_clip, load_dino
from tokenmerge.eval.prompts import read_prompts
from tokenmerge.eval.run import evaluate
from tokenmerge.eval.run_folder import RunFolder
from tokenmerge.eval.variants import variants_of
from tokenmerge.runtime.plain_text import shown_plainly
from tokenmerge.runtime.tiny_random import build_tiny_random

ESCAPES = ["../../out", "/etc/passwd", "..", ".", "a/../../b", "C:\\out", "~/out", "nul\x00", "%2e%2e%2f", "-rf", ""]
ANYTHING = [b"[" * 100_000, b"9" * 1_000_001, b'{"a": 1}\n', b"[]\n", b"\x00\xff\n", b"null\n"]


def values(name: str = "small", variant: str = "ToMA", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"name": "tiny-random", "threads": 1},
        "prompts": {"file": "prompts.txt"},
        "seeds": {"values": [7]},
        "image": {"width": 64, "height": 64, "steps": 1},
        "timing": {"warmup": 0},
        "metrics": {"names": ["psnr"]},
        "variants": [{"name": variant, "method": "toma", "options": {"min_tokens": 16}}],
        **more,
    }


@cache
def tiny_pipeline() -> Any:
    return build_tiny_random()


def run(folder: Path, experiment: dict[str, Any], out: str = "run") -> Path:
    (folder / "prompts.txt").write_text("a cat\n")
    pipe = tiny_pipeline()
    evaluate(
        parse_experiment(experiment, folder),
        folder / out,
        lambda settled: LocalEngine(settled, lambda each: ImageMaker(each, pipe)),
        lambda sentence: None,
    )
    return folder / out


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# -- names ---------------------------------------------------------------------------------------------------------


@given(st.text(max_size=30) | st.sampled_from(ESCAPES))
def test_a_variants_name_makes_a_plain_folder_name(name: str) -> None:
    try:
        variants = variants_of(parse_experiment(values(variant=name), Path("/somewhere")))
    except ExperimentError:
        return
    folder = Path("/somewhere/run/images")
    inside = (folder / variants[1].key).resolve()
    assert inside.parent == folder
    assert variants[1].key.isascii()
    assert variants[1].key.isprintable()
    assert not variants[1].key.startswith((".", "-"))


@pytest.mark.parametrize("name", ["../../out", "/tmp/out", "$\\frac{", "a\nb", "<script>alert(1)</script>"])
def test_no_name_leads_out_of_the_run_folder(tmp_path: Path, name: str) -> None:
    folder = run(tmp_path, values(name=name, variant=name, description=name))
    assert (folder / "report.html").exists()
    assert {file for file in files_of(tmp_path) if not file.startswith("run/")} == {"prompts.txt"}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and a file next to it that is nobody's business. Not to be changed: `stranger` is."""
    parent = tmp_path_factory.mktemp("finished")
    folder = run(parent, values())
    (parent / "private.png").write_bytes((folder / "images" / "baseline" / "00000.png").read_bytes())
    return parent


@pytest.fixture
def stranger(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path, dirs_exist_ok=True)) / "run"


@pytest.mark.parametrize("file", ["../private.png", "{absolute}", "images/../../private.png"])
def test_a_record_names_no_other_file(stranger: Path, file: str) -> None:
    private = stranger.parent / "private.png"
    records = [json.loads(line) for line in (stranger / "records.jsonl").read_text().splitlines()]
    for record in records:
        record["file"] = file.format(absolute=private)
    (stranger / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    folder = RunFolder(stranger)
    folder.load_records()
    assert folder.records == {}
    assert folder.dropped == len(records)


def test_a_link_leads_no_image_out_of_the_run_folder(stranger: Path) -> None:
    elsewhere = stranger.parent / "elsewhere"
    (stranger / "images" / "baseline").rename(elsewhere)
    before = {file: hashlib.sha256((elsewhere / file).read_bytes()).hexdigest() for file in files_of(elsewhere)}
    (stranger / "images" / "baseline").symlink_to(elsewhere)
    (elsewhere / "00000.png").unlink()
    with pytest.raises(RunFolderError, match="leads out of the run's folder"):
        run(stranger.parent, values())
    assert files_of(elsewhere) == set(before) - {"00000.png"}


@pytest.mark.parametrize("file", ["pairs.jsonl", "records.jsonl", "measurements.jsonl", "experiment.toml"])
@pytest.mark.parametrize("content", ANYTHING, ids=range(len(ANYTHING)))
def test_a_run_folder_with_anything_in_it_is_mended_or_a_sentence(stranger: Path, file: str, content: bytes) -> None:
    (stranger / file).write_bytes(content)
    try:
        run(stranger.parent, values())
    except (RunFolderError, ExperimentError):
        return
    assert len((stranger / "records.jsonl").read_text().splitlines()) == 2


# -- amounts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 100_000,
        "x = " + "{a = " * 50_000,
        "x = " + "9" * 10_000,
        "a." * 100_000 + "b = 1",
        '"a" . ' * 50_000 + "b = 1",
        "[" + "a." * 100_000 + "b]",
        "x" * 999_999,
        "# " + "x" * 1_000_001,
        "[[variants]]\n" * 60_000,
        "\x00",
    ],
    ids=[
        "deep list",
        "deep table",
        "many digits",
        "key of many parts",
        "quoted key of many parts",
        "table of many parts",
        "long word",
        "large",
        "many tables",
        "null",
    ],
)
def test_any_toml_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    with pytest.raises(ExperimentError):
        read_experiment(tmp_path / "experiment.toml")


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("image", "width", 8200),
        ("image", "height", 10**9),
        ("image", "steps", 1001),
        ("seeds", "values", [2**32]),
        ("seeds", "values", list(range(10_001))),
        ("seeds", "draw", 10**9),
        ("timing", "warmup", 10**6),
        ("timing", "warmup_steps", 10**6),
        ("metrics", "resamples", 10**9),
        ("figures", "gallery", 10**6),
        ("model", "threads", 10**6),
        ("prompts", "limit", 10**9),
    ],
)
def test_amounts_have_bounds(tmp_path: Path, table: str, key: str, value: Any) -> None:
    experiment = values()
    experiment[table] = {**experiment.get(table, {}), key: value}
    if table == "seeds" and key == "draw":
        del experiment["seeds"]["values"]
    with pytest.raises(ExperimentError, match=f"{key} in .*{table}"):
        parse_experiment(experiment, tmp_path)


def test_the_number_of_images_has_a_bound(tmp_path: Path) -> None:
    from tokenmerge.eval.run import inputs_of

    (tmp_path / "prompts.txt").write_text("a cat\n" * 1000)
    experiment = parse_experiment(values(ratios=[n / 200 for n in range(1, 100)]), tmp_path)
    experiment = dataclasses.replace(experiment, seeds=dataclasses.replace(experiment.seeds, values=(), draw=10_000))
    with pytest.raises(ExperimentError, match="1,000,000,000 images, more than 2,000,000"):
        inputs_of(experiment)


def test_prompts_have_bounds(tmp_path: Path) -> None:
    long, large, control = (tmp_path / f"{name}.txt" for name in ("long", "large", "control"))
    long.write_text("a cat\n" + "x" * 20_001)
    with large.open("wb") as file:
        file.truncate(1_000_000_001)  # a hole: it takes no room on the disk
    control.write_text("a cat\nred\x1b[2Japple\n")
    with pytest.raises(ExperimentError, match=r"prompt 2 of .*20,001 characters"):
        read_prompts(long, None, None)
    with pytest.raises(ExperimentError, match="more than 1000 MB"):
        read_prompts(large, None, None)
    with pytest.raises(ExperimentError, match=r"prompt 2 of .*control character"):
        read_prompts(control, None, None)


def test_running_out_of_memory_is_reported_as_such() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    assert _is_out_of_memory(caught.value)
    assert _is_out_of_memory(MemoryError())
    assert not _is_out_of_memory(RuntimeError("another"))


# -- code and words ------------------------------------------------------------------------------------------------


def test_an_experiment_cannot_allow_pickles(tmp_path: Path) -> None:
    for table in ("model", "metrics"):
        experiment = values()
        experiment[table] = {**experiment[table], "allow_pickle": True}
        with pytest.raises(ExperimentError, match="no key 'allow_pickle'"):
            parse_experiment(experiment, tmp_path)
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "network.pt"))
    with pytest.raises(MetricUnavailable, match="--allow-pickle"):
        load_inception(str(tmp_path / "network.pt"), torch.device("cpu"))


@pytest.mark.parametrize("load", [load_clip, load_dino])
def test_code_of_a_metrics_network_is_never_run(load: Any, tmp_path: Path, ran: Path) -> None:
    auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoImageProcessor"), "own.Own")
    words = {"model_type": "own", "auto_map": {**auto, "AutoTokenizer": ["own.Own", None]}}
    for file in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        (tmp_path / file).write_text(json.dumps(words))
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    with pytest.raises(MetricUnavailable, match="could not be loaded"):
        load(str(tmp_path), torch.device("cpu"))
    assert not ran.exists()


@given(st.text())
def test_nothing_shown_can_move_a_cursor(text: str) -> None:
    shown = shown_plainly(text)
    assert all(character.isprintable() or ord(character) > 0x9F or character in "\t\n" for character in shown)
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("name", ["red\x1b[2J", "\u202eelpmis", "bell\x07"])
def test_names_of_an_experiment_hold_no_control_characters(tmp_path: Path, name: str) -> None:
    for experiment in (values(name=name), values(variant=name), values(description=name)):
        with pytest.raises(ExperimentError, match="without control characters"):
            parse_experiment(experiment, tmp_path)


def test_errors_are_shown_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--model", "a/b\x1b[2J/c"]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "a/b\\x1b[2J/c" in said
