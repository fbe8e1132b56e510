"""Run folders: nothing lost, nothing doubled, whatever kills the process; nobody else's folder touched."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from PIL import Image
from small_experiment import EXPERIMENT, PROMPTS

from tokenmerge.errors import WriteError
from tokenmerge.eval.engine import LocalEngine, Work, work_left
from tokenmerge.eval.errors import RunFolderError
from tokenmerge.eval.experiment import read_experiment
from tokenmerge.eval.image_maker import ImageMaker
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import load_records
from tokenmerge.eval.run import make_images
from tokenmerge.eval.run_folder import RunFolder
from tokenmerge.eval.variants import variants_of
from tokenmerge.runtime import files
from tokenmerge.runtime.tiny_random import build_tiny_random


def engine_of(experiment):
    return LocalEngine(experiment, lambda e: ImageMaker(e, build_tiny_random()))


def run(path: Path, experiment, said=None) -> RunFolder:
    folder = RunFolder(path)
    with folder.locked():
        make_images(experiment, folder, engine_of, (lambda text: None) if said is None else said.append)
    return folder


def hashes(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((path / "images").rglob("*"))
        if file.is_file()
    }


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The small experiment run once from beginning to end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    (folder / "experiment.toml").write_text(EXPERIMENT)
    run(folder / "run", read_experiment(folder / "experiment.toml"))
    return folder / "run"


def test_a_run_holds_every_image_and_its_record(undisturbed):
    records = lines(undisturbed)
    assert len(records) == 4 * 4
    assert {(r["variant"], r["id"]) for r in records} == {
        (variant, f"{pair:05d}") for variant in ("baseline", "ToMA_r0.5", "LB_r0.25", "LB_r0.5") for pair in range(4)
    }
    for record in records:
        image = Image.open(undisturbed / record["file"])
        assert image.size == (128, 128)
        metadata = json.loads(image.text["tokenmerge"])
        assert metadata["seed"] == record["seed"] == 7
        assert metadata["prompt"] == record["prompt"]
        assert metadata["steps"] == 2
        if record["variant"] == "baseline":
            assert metadata["config"] is None
        else:
            assert metadata["config"]["ratio"] == record["ratio"]
        assert record["seconds"] > 0
        assert set(record["versions"]) == {"python", "tokenmerge", "torch", "diffusers", "transformers"}


def test_merging_changes_the_image_and_pairs_share_their_noise(undisturbed):
    sums = hashes(undisturbed)
    assert len(set(sums.values())) == len(sums)


def children() -> ForkServerContext:
    """Processes that begin at once, and not as copies of this one.

    Tests before these leave threads behind (Ray's, a page's), and a copy has their locks without anyone to open them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenmerge.eval.run", "diffusers.pipelines.stable_diffusion", "pytest"])
    return context


def kill_at_random(path: Path, experiment, times: int) -> int:
    """Run the experiment in a child that is killed after none, one or two more images, somewhere in the next.

    Returns how many kills found it at work.
    """
    chance = random.Random(0)
    killed = 0
    for _ in range(times):
        child = children().Process(target=run, args=(path, experiment))
        before = made_so_far(path)
        child.start()
        wanted = before + chance.choice([0, 1, 2])
        while child.is_alive() and made_so_far(path) < wanted:
            child.join(0.005)
        child.join(chance.uniform(0.0, 0.25))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            killed += 1
        child.join()
    return killed


def made_so_far(path: Path) -> int:
    file = path / "records.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def finish_after_kills(undisturbed, path, experiment, times):
    assert kill_at_random(path, experiment, times) > 0
    assert made_so_far(path) > 0
    run(path, experiment)
    assert hashes(path) == hashes(undisturbed)
    keys = [(r["variant"], r["id"]) for r in lines(path)]
    assert len(keys) == len(set(keys)) == 16


def test_kills_lose_nothing_and_double_nothing(undisturbed, experiment_file, tmp_path):
    finish_after_kills(undisturbed, tmp_path / "run", read_experiment(experiment_file()), times=2)


@pytest.mark.long
def test_ten_kills_lose_nothing_and_double_nothing(undisturbed, experiment_file, tmp_path):
    finish_after_kills(undisturbed, tmp_path / "run", read_experiment(experiment_file()), times=10)


def test_running_again_makes_nothing_and_loads_no_model(undisturbed, experiment_file, tmp_path):
    experiment = read_experiment(experiment_file())
    before = hashes(undisturbed), (undisturbed / "records.jsonl").read_bytes()

    def no_engine(experiment):
        def refuse(_):
            raise AssertionError("the model was loaded")

        return LocalEngine(experiment, refuse)

    folder = RunFolder(undisturbed)
    with folder.locked():
        make_images(experiment, folder, no_engine, print)
    assert (hashes(undisturbed), (undisturbed / "records.jsonl").read_bytes()) == before


@pytest.fixture
def copied(undisturbed, tmp_path):
    import shutil

    return Path(shutil.copytree(undisturbed, tmp_path / "copied"))


def test_a_torn_line_a_missing_image_and_a_doubled_line_are_mended(copied, undisturbed, experiment_file):
    file = copied / "records.jsonl"
    all_lines = file.read_bytes().splitlines(keepends=True)
    (copied / json.loads(all_lines[3])["file"]).unlink()
    (copied / json.loads(all_lines[5])["file"]).write_bytes(b"short")
    file.write_bytes(b"".join(all_lines[:-1]) + all_lines[0] + b"not json\n" + all_lines[-1][:30])
    said = []
    run(copied, read_experiment(experiment_file()), said)
    assert hashes(copied) == hashes(undisturbed)
    assert len(lines(copied)) == 16
    assert "5 unfinished records were dropped" in said[0]


def test_an_image_without_a_record_is_made_again_not_doubled(copied, undisturbed, experiment_file):
    file = copied / "records.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    run(copied, read_experiment(experiment_file()))
    assert hashes(copied) == hashes(undisturbed)
    assert len(lines(copied)) == 16


def hold(path: Path, held: Event, done: Event) -> None:
    with RunFolder(path).locked():
        held.set()
        done.wait(60)


def test_two_processes_on_one_folder_are_refused(copied):
    held, done = children().Event(), children().Event()
    child = children().Process(target=hold, args=(copied, held, done))
    child.start()
    assert held.wait(60)
    with pytest.raises(RunFolderError, match=f"in use by process {child.pid}"), RunFolder(copied).locked():
        pass
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with RunFolder(copied).locked():  # a killed process leaves no lock behind
        pass


OTHERS = [
    (("steps = 2", "steps = 3"), "image.steps is 3 here and 2 there"),
    (("values = [7]", "values = [8]"), "seeds.values"),
    (("ratios = [0.25, 0.5]", "ratios = [0.25, 0.75]"), "variants[1].ratios[1] is 0.75 here and 0.5 there"),
    (("width = 128", "width = 256"), "image.width is 256 here and 128 there"),
]


@pytest.mark.parametrize(("change", "sentence"), OTHERS, ids=[s[:30] for _, s in OTHERS])
def test_a_folder_of_another_experiment_is_refused(copied, experiment_file, change, sentence):
    before = hashes(copied), (copied / "experiment.toml").read_bytes()
    with pytest.raises(RunFolderError) as caught:
        run(copied, read_experiment(experiment_file(change)))
    assert sentence in str(caught.value)
    assert "was made by another experiment" in str(caught.value)
    assert (hashes(copied), (copied / "experiment.toml").read_bytes()) == before


def test_other_prompts_are_refused(copied, experiment_file):
    with pytest.raises(RunFolderError, match="was made with other prompts or seeds"):
        run(copied, read_experiment(experiment_file(prompts=["a house", "a mouse"])))


def test_more_prompts_go_on_from_what_is_there(copied, undisturbed, experiment_file):
    run(copied, read_experiment(experiment_file(prompts=[*PROMPTS, "one more"])))
    assert len(lines(copied)) == 20
    old = hashes(undisturbed)
    assert {name: value for name, value in hashes(copied).items() if name in old} == old


def test_drawn_seeds_are_drawn_once(experiment_file, tmp_path):
    experiment = read_experiment(experiment_file(("values = [7]", "draw = 1"), prompts=["a"]))
    run(tmp_path / "run", experiment)
    first = (tmp_path / "run" / "pairs.jsonl").read_text(), hashes(tmp_path / "run")
    (tmp_path / "run" / "records.jsonl").unlink()
    run(tmp_path / "run", experiment)
    assert ((tmp_path / "run" / "pairs.jsonl").read_text(), hashes(tmp_path / "run")) == first


def test_a_strangers_folder_is_left_alone(tmp_path, experiment_file):
    experiment = read_experiment(experiment_file())
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.doc").write_text("precious")
    with pytest.raises(RunFolderError, match=r"holds 'thesis.doc' and is no run folder"):
        run(tmp_path / "home", experiment)
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["thesis.doc"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match="is a file"):
        run(tmp_path / "file", experiment)


def test_a_full_disk_is_a_sentence_and_loses_nothing(copied, undisturbed, experiment_file, monkeypatch):
    file = copied / "records.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-4]))
    real, room = os.fsync, [2]

    def full(descriptor):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    for spare in (2, 3, 6):  # the disk fills up at an image, at a record
        room[0] = spare
        with pytest.raises(WriteError, match="the disk is full"):
            run(copied, read_experiment(experiment_file()))
        assert not list(copied.rglob(f"*{files.TEMPORARY}"))
        assert all(json.loads(line) for line in file.read_text().splitlines())
    monkeypatch.undo()
    run(copied, read_experiment(experiment_file()))
    assert hashes(copied) == hashes(undisturbed)
    assert len(lines(copied)) == 16


def test_long_prompts_are_cut_and_said_so(experiment_file, tmp_path):
    long = "a castle, " * 20 + "at dawn"
    said = []
    path = experiment_file(("values = [7]", "values = [7, 8]"), prompts=[long])
    run(tmp_path / "run", read_experiment(path), said)
    assert any("1 of 1 prompts were longer than the tokenizer reads" in text for text in said)
    pair, _ = map(json.loads, (tmp_path / "run" / "pairs.jsonl").read_text().splitlines())
    assert pair["uncut"] == long
    assert long.startswith(pair["prompt"])
    assert pair["prompt"].endswith("castle")
    assert len(pair["prompt"]) > 40


def test_each_pair_begins_with_another_variant(experiment_file):
    variants = variants_of(read_experiment(experiment_file()))
    pairs = [Pair(f"{i:05d}", "p", i) for i in range(5)]
    work = work_left(pairs, variants, {})
    assert [item.variants[0].key for item in work] == [variants[i % 4].key for i in range(5)]
    assert all({v.key for v in item.variants} == {v.key for v in variants} for item in work)


def test_only_what_is_missing_is_work(experiment_file, undisturbed):
    variants = variants_of(read_experiment(experiment_file()))
    records, dropped = load_records(undisturbed / "records.jsonl")
    assert dropped == 0
    pairs = [Pair(f"{i:05d}", "p", i) for i in range(4)]
    del records["ToMA_r0.5", "00002"]
    assert work_left(pairs, variants, records) == [Work(pairs[2], (variants[1],))]


def test_the_clock_stops_before_the_image_is_written(undisturbed, experiment_file):
    """Seconds are those of the pipeline's call alone: a slow pipeline shows, a slow warm-up does not."""
    experiment = dataclasses.replace(read_experiment(experiment_file()))

    class Slow:
        device = "cpu"
        unet = torch.nn.Identity()  # whose multiply-adds are counted

        def __call__(self, prompt, num_inference_steps, **_):
            time.sleep(0.05 if num_inference_steps == 2 else 0.5)
            return type("Output", (), {"images": [Image.new("RGB", (8, 8))]})

    maker = ImageMaker(experiment, Slow())
    image = maker.make(variants_of(experiment)[0], Pair("00000", "p", 1))
    assert 0.05 <= image.seconds < 0.4
