"""A whole run: tables.md against a second computation, the page, and the command's sentences."""

from __future__ import annotations

import argparse
import html
import json
import pickle
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from by_hand import Pooled, checkpoint, fid_by_hand, lpips_by_hand, pixels_of, pooled
from PIL import Image
from small_experiment import EXPERIMENT, PROMPTS

from tokenmerge.cli import evaluate as command
from tokenmerge.errors import ConfigError, TokenMergeError
from tokenmerge.eval.experiment import read_experiment
from tokenmerge.methods.toma import ToMA

METRICS = """
[metrics]
inception = "network.pt"
lpips = "alexnet.ckpt"
real_images = "real"
clip = "no/such-model"
resamples = 200

[figures]
hidden_states = true
destinations = true
"""
NASTY = '</script><script>alert(1)</script><img src=x onerror=alert(1)> | `x` \u2028 & "quotes"'


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with every metric that can be had without a download, networks small."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "prompts.txt").write_text("\n".join([*PROMPTS[:3], NASTY]))
    (folder / "experiment.toml").write_text(EXPERIMENT + METRICS)
    torch.jit.script(Pooled()).save(str(folder / "network.pt"))
    (folder / "alexnet.ckpt").write_bytes(pickle.dumps(checkpoint()))
    (folder / "real").mkdir()
    for index in range(3):
        noise = np.random.default_rng(index).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "real" / f"{index}.jpg")
    code, words = run_command(folder / "experiment.toml", "--out", folder / "run", "--allow-pickle")
    assert code == 0
    return folder / "run", words


def run_command(*words, capture=None) -> tuple[int, list[str]]:
    """The command as `tokenmerge eval` runs it; what it said on the way."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["eval", *map(str, words)])
    return command.run(args), []


def rows_of(tables: str, heading: str) -> list[dict[str, str]]:
    """A Markdown table as a list of rows."""
    lines = tables.split(f"## {heading}")[1].strip().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    table = [line for line in lines[start:] if line.startswith("|")]
    table = table[: next((i for i, line in enumerate(lines[start:]) if not line.startswith("|")), len(table))]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def number(cell: str) -> float:
    return float(cell.split(" ")[0])


def test_times_in_the_table_are_those_of_the_records(finished):
    folder, _ = finished
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    rows = rows_of((folder / "tables.md").read_text(), "Time")
    assert len(rows) == 4
    base = np.median([r["seconds"] for r in records if r["variant"] == "baseline"])
    for row in rows:
        key = row["variant"] if not row["r"] else f"{row['variant']}_r{row['r']}"
        seconds = [r["seconds"] for r in records if r["variant"] == key]
        assert len(seconds) == 4
        assert number(row["best s/im"]) == pytest.approx(min(seconds), abs=5.1e-4)
        assert number(row["median s/im"]) == pytest.approx(np.median(seconds), abs=5.1e-4)
        assert number(row["mean s/im"]) == pytest.approx(np.mean(seconds), abs=5.1e-4)
        assert number(row["speed-up"]) == pytest.approx(base / np.median(seconds), abs=5.1e-4)
        assert number(row["time, % of baseline"]) == pytest.approx(100 * np.median(seconds) / base, abs=0.051)


def test_quality_in_the_table_is_that_of_the_images(finished):
    """Everything again, from the PNG files with numpy and scipy alone."""
    folder, _ = finished
    rows = rows_of((folder / "tables.md").read_text(), "Quality")
    real = np.stack([pooled(path) for path in sorted((folder.parent / "real").iterdir())])
    base_features = np.stack([pooled(path) for path in sorted((folder / "images/baseline").iterdir())])
    assert number(rows[0]["FID (real) ↓"]) == pytest.approx(fid_by_hand(base_features, real), abs=0.0051)
    for row in rows[1:]:
        images = sorted((folder / "images" / f"{row['variant']}_r{row['r']}").iterdir())
        pairs = [(pixels_of(folder / "images/baseline" / p.name), pixels_of(p)) for p in images]
        errors = [np.mean((a - b) ** 2) for a, b in pairs]
        assert number(row["MSE ↓"]) == pytest.approx(np.mean(errors), abs=0.0051)
        assert number(row["PSNR ↑"]) == pytest.approx(np.mean([10 * np.log10(255**2 / e) for e in errors]), abs=0.0051)
        scaled = [(a.transpose(2, 0, 1) / 127.5 - 1, b.transpose(2, 0, 1) / 127.5 - 1) for a, b in pairs[:1]]
        assert lpips_by_hand(checkpoint(), *scaled[0]) > 0
        features = np.stack([pooled(path) for path in images])
        assert number(row["FID ↓"]) == pytest.approx(fid_by_hand(features, base_features), abs=0.0051)
        assert number(row["FID (real) ↓"]) == pytest.approx(fid_by_hand(features, real), abs=0.0051)
        assert row["CLIP ↑"] == "n/a"


def test_differences_are_paired(finished):
    folder, _ = finished
    row = next(r for r in rows_of((folder / "tables.md").read_text(), "Paired differences") if r["r"] == "0.5")
    assert row["variant"] == "LB"
    differences = []
    for path in sorted((folder / "images/LB_r0.5").iterdir()):
        base, other = (pixels_of(folder / "images" / key / path.name) for key in ("baseline", "ToMA_r0.5"))
        ours = pixels_of(path)
        differences.append(10 * np.log10(np.mean((other - base) ** 2) / np.mean((ours - base) ** 2)))
    assert number(row["PSNR"]) == pytest.approx(np.mean(differences), abs=0.0051)
    low, high = map(float, re.findall(r"[+-][\d.]+", row["PSNR"])[1:])
    assert min(differences) - 0.01 <= low <= np.mean(differences) <= high <= max(differences) + 0.01


def test_what_cannot_be_had_is_named_and_the_rest_goes_on(finished, capsys):
    folder, _ = finished
    found = json.loads((folder / "metrics.json").read_text())
    assert set(found["unavailable"]) == {"clip", "dino"}
    assert "could not be loaded" in found["unavailable"]["clip"]
    tables = (folder / "tables.md").read_text()
    assert "DINO is n/a: DINO distance needs a network" in tables
    assert found["pairs"] == 4
    assert found["variants"][1]["metrics"]["psnr"]["n"] == 4


class Checker(HTMLParser):
    """Collects what a browser would take as markup."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def test_the_page_is_one_file_and_prompts_stay_words(finished):
    folder, _ = finished
    page = (folder / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert len(checker.scripts) == 2
    data = json.loads(checker.scripts[0])
    assert NASTY in [shot["prompt"] for entry in data["gallery"] for shot in entry["shots"]]
    assert not any("onerror" in attributes for _, attributes in checker.tags)
    for tag, attributes in checker.tags:
        for name in ("src", "href"):
            if name in attributes:
                assert attributes[name].startswith("data:"), (tag, attributes[name][:60])
    assert "innerHTML" not in page
    assert re.findall(r"https?://(?!www\.w3\.org)[^\"' )]+", checker.scripts[1]) == []


def test_the_gallery_begins_with_the_worst(finished):
    folder, _ = finished
    checker = Checker()
    checker.feed((folder / "report.html").read_text())
    data = json.loads(checker.scripts[0])
    assert [entry["label"] for entry in data["gallery"]] == ["ToMA, r = 0.5", "LB, r = 0.25", "LB, r = 0.5"]
    for entry in data["gallery"]:
        psnr = [shot["values"]["psnr"] for shot in entry["shots"]]
        assert psnr == sorted(psnr)
        assert all(shot["id"] in data["baseline"] for shot in entry["shots"])


def test_figures_are_drawn_and_hold_no_markup_from_prompts(finished):
    from xml.etree import ElementTree

    folder, _ = finished
    names = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert names == {"quality-time", "ratio", "grid-LB", "grid-r0.5", "hidden-states", "destinations"}
    for path in (folder / "figures").glob("*.svg"):
        tree = ElementTree.parse(path)
        assert not [node for node in tree.iter() if node.tag.endswith("script")]
    assert len([n for n in ElementTree.parse(folder / "figures/grid-LB.svg").iter() if n.tag.endswith("image")]) == 12


def test_running_again_changes_nothing(finished):
    folder, _ = finished
    names = ("metrics.json", "tables.md", "report.html", "records.jsonl", "experiment.toml", "measurements.jsonl")
    before = {name: (folder / name).read_bytes() for name in names}
    run_command(folder.parent / "experiment.toml", "--out", folder, "--allow-pickle")
    assert {name: (folder / name).read_bytes() for name in names} == before


def test_one_pair_and_no_network_still_make_a_page(experiment_file, tmp_path):
    path = experiment_file(prompts=["only one"], more='\n[metrics]\nnames = ["psnr", "fid"]\n')
    run_command(path, "--out", tmp_path / "run")
    tables = (tmp_path / "run" / "tables.md").read_text()
    assert "FID is n/a: FID needs two pairs or more" in tables
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--limit", "0"], "--limit is '0'"),
        (["--limit", "many"], "--limit is 'many'"),
        (["--size", "0x4"], "--size is '0x4'"),
        (["--steps", "-1"], "--steps is '-1'"),
        (["--prompts", "nowhere.txt"], "does not exist"),
        (["--workers", "2"], "add --engine ray"),
        (["--model", "/no/such/folder"], "there is no model folder"),
    ],
)
def test_wrong_words_are_a_sentence(experiment_file, tmp_path, words, sentence):
    with pytest.raises(TokenMergeError) as caught:
        run_command(experiment_file(), "--out", tmp_path / "run", *words)
    assert sentence in str(caught.value)
    assert not list((tmp_path / "run").rglob("*.png"))
    if "--model" not in words:  # that one is not known before the run begins
        assert not (tmp_path / "run").exists()


def test_a_size_the_model_cannot_make_is_a_sentence(experiment_file, tmp_path):
    with pytest.raises(TokenMergeError, match=r"width in \[image\] is 100: tiny-random makes images .* use 96"):
        run_command(experiment_file(("width = 128", "width = 100")), "--out", tmp_path / "run")


def test_a_variant_that_merges_nothing_here_is_named(experiment_file, tmp_path):
    path = experiment_file(("width = 128\nheight = 128", "width = 64\nheight = 64"))
    with pytest.raises(TokenMergeError, match=r"variant ToMA, r = 0.5: nothing was merged"):
        run_command(path, "--out", tmp_path / "run")


def test_overrides_take_the_place_of_the_file(experiment_file, tmp_path):
    csv = tmp_path / "p.csv"
    csv.write_text("text\na\nb\nc\n")
    path = experiment_file(more='\n[metrics]\nnames = ["mse"]\n')
    words = ["--prompts", csv, "--column", "text", "--limit", "2", "--steps", "1", "--size", "160x128"]
    run_command(path, "--out", tmp_path / "run", *words)
    stored = read_experiment(tmp_path / "run" / "experiment.toml")
    assert (stored.image.steps, stored.image.width, stored.image.height) == (1, 160, 128)
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert {record["prompt"] for record in records} == {"a", "b"}
    assert Image.open(tmp_path / "run" / records[0]["file"]).size == (160, 128)


def test_json_is_printed_for_scripts(finished, capsys):
    folder, _ = finished
    run_command(folder.parent / "experiment.toml", "--out", folder, "--json", "--allow-pickle")
    assert json.loads(capsys.readouterr().out)["experiment"] == "small"


DRIVER = """
<script>
addEventListener("load", () => {
  const text = (selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent);
  const found = { before: text("#results tbody td:first-child") };
  const heads = [...document.querySelectorAll("#results th button")];
  const psnr = heads.find((head) => head.textContent.startsWith("PSNR"));
  psnr.click();
  found.sorted = text("#results tbody tr").length && [...document.querySelectorAll("#results tbody tr")].map(
    (row) => row.children[heads.indexOf(psnr)].firstChild?.textContent ?? "");
  psnr.click();
  found.reversed = [...document.querySelectorAll("#results tbody tr")].map(
    (row) => row.children[heads.indexOf(psnr)].firstChild?.textContent ?? "");
  const choice = document.getElementById("variant");
  found.variants = [...choice.options].map((option) => option.text);
  choice.value = "2"; choice.dispatchEvent(new Event("change"));
  found.shots = text("#gallery .numbers");
  found.prompts = text("#gallery .caption div:first-child");
  const slider = document.querySelector(".slider"), range = slider.querySelector("input");
  range.value = 20; range.dispatchEvent(new Event("input"));
  found.clip = getComputedStyle(slider.querySelector(".after")).clipPath;
  found.broken = [...document.images].filter((image) => image.complete && !image.naturalWidth).length;
  document.body.textContent = JSON.stringify(found);
});
</script>
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_page_works_in_a_browser(finished, tmp_path):
    folder, _ = finished
    page = tmp_path / "page.html"
    page.write_text((folder / "report.html").read_text() + DRIVER)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", page.as_uri()]
    output = subprocess.run(["chromium", *words], capture_output=True, text=True, timeout=300, check=True).stdout
    found = json.loads(html.unescape(re.search(r"<body>(.*)</body>", output, re.S).group(1)))
    assert found["before"] == ["baseline", "ToMA", "LB", "LB"]
    values = [float(value) for value in found["sorted"] if value]
    assert values == sorted(values, reverse=True)  # higher is better, so the best comes first
    assert [float(value) for value in found["reversed"] if value] == values[::-1]
    assert found["variants"] == ["ToMA, r = 0.5", "LB, r = 0.25", "LB, r = 0.5"]
    shown = [float(re.search(r"PSNR ([\d.]+)", numbers).group(1)) for numbers in found["shots"]]
    assert shown == sorted(shown)
    assert len(shown) == 4
    assert NASTY in found["prompts"]
    assert "20%" in found["clip"]
    assert found["broken"] == 0


def test_a_config_that_changes_its_ratio_is_one_more_variant_and_can_go_on(
    experiment_file, tmp_path, capsys, monkeypatch
):
    """As `tokenmerge tune` writes it. A figure that cannot be made is reported, and nothing else is lost for it."""

    def refuse(*_):
        raise ConfigError("this method selects nothing.")

    monkeypatch.setattr("tokenmerge.eval.run.internal_figures", refuse)
    config = ToMA(ratio=[0.25, 0.5])
    (tmp_path / "$my$ config.json").write_text(json.dumps(config.to_dict()))
    path = experiment_file(
        prompts=["a", "b"],
        more='\n[metrics]\nnames = ["psnr"]\n\n[figures]\ndestinations = true\n',
    )
    words = [path, "--out", tmp_path / "run", "--config", tmp_path / "$my$ config.json"]
    run_command(*words)
    printed = capsys.readouterr().err
    assert "figures are left out" in printed
    assert ".." not in printed.split("figures are left out")[1].splitlines()[0]
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert [variant["ratio"] for variant in found["variants"]] == [None, 0.5, 0.25, 0.5, None]
    assert found["variants"][-1]["config"] == config.to_dict()
    assert "$my$ config" in (tmp_path / "run" / "figures" / "quality-time.svg").read_text()
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    run_command(*words)
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before
