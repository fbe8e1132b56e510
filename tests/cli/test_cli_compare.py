"""`compare`: both images, an image of them, timings that are counted right, and fidelity that is the real one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from command_runs import SMALL, Run
from PIL import Image

from tokenmerge.cli.side_by_side import side_by_side
from tokenmerge.runtime.generation import ImageRequest
from tokenmerge.runtime.pipelines import LoadedPipeline


def test_one_folder_with_everything(run: Run) -> None:
    outcome = run("compare", "a cat", *SMALL, "--method", "toma-stripe", "--ratio", "0.6", "--out", "both")
    assert outcome.code == 0, outcome.err
    folder = Path("both")
    assert sorted(file.name for file in folder.iterdir()) == [
        "compare.json",
        "merged.png",
        "side_by_side.png",
        "unmerged.png",
    ]
    result = json.loads((folder / "compare.json").read_text())
    assert result["method"] == "toma-stripe"
    assert result["config"]["ratio"] == 0.6
    unmerged, merged = (np.asarray(Image.open(folder / f"{name}.png")) for name in ("unmerged", "merged"))
    error = np.mean((unmerged.astype(float) - merged.astype(float)) ** 2)
    assert result["psnr"] == pytest.approx(10 * math.log10(255**2 / error))
    assert 0 < result["ssim"] < 1
    assert f"{result['psnr']:.1f} dB" in outcome.out
    assert f"{result['speedup']['best']:.2f}x" in outcome.out
    assert "toma-stripe, ratio 0.6" in outcome.out
    assert "mean nothing" in outcome.err


def test_both_images_are_those_of_generate(run: Run) -> None:
    run("compare", "a cat", *SMALL, "--out", "both")
    run("generate", "a cat", *SMALL, "--out", "merged.png")
    run("generate", "a cat", *SMALL, "--method", "none", "--out", "unmerged.png")
    for name in ("merged.png", "unmerged.png"):
        assert (np.asarray(Image.open(name)) == np.asarray(Image.open(Path("both") / name))).all()


def test_repeats_are_interleaved_and_the_warm_up_is_not_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str | None] = []
    clock = iter([99.0, 88.0, 4.0, 2.0, 6.0, 1.0, 8.0, 4.0])  # seconds of each call, the warm-ups first

    real = LoadedPipeline.generate

    def generate(loaded: LoadedPipeline, request: ImageRequest, progress: str) -> tuple[Image.Image, float]:
        order.append(progress)
        return real(loaded, request)[0], next(clock)

    monkeypatch.setattr(LoadedPipeline, "generate", generate)
    outcome = run("compare", "a cat", *SMALL, "--repeats", "3", "--json")
    result = json.loads(outcome.out)
    assert order[2:] == ["unmerged 1/3", "merged 1/3", "unmerged 2/3", "merged 2/3", "unmerged 3/3", "merged 3/3"]
    assert result["seconds"] == {"unmerged": [4.0, 6.0, 8.0], "merged": [2.0, 1.0, 4.0]}
    assert result["best"] == {"unmerged": 4.0, "merged": 1.0}
    assert result["median"] == {"unmerged": 6.0, "merged": 2.0}
    assert result["speedup"] == {"best": 4.0, "median": 3.0}


def test_says_how_often_plans_were_made(run: Run) -> None:
    # Three levels share a plan each: down and up at 32 x 32 tokens, and the middle at 16 x 16. Three steps with new
    # weights every one and new destinations every second: 2 and 3 times for each.
    schedule = "--method", "toma", "--steps", "3", "--set", "select_every=2,1"
    outcome = run("compare", "a cat", *SMALL, *schedule)
    assert "destinations selected 6 times, weights computed 9 times" in outcome.out


def test_identical_images_have_no_psnr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    same = Image.effect_noise((64, 64), 50).convert("RGB")
    real = LoadedPipeline.generate

    def generate(loaded: LoadedPipeline, request: ImageRequest, progress: str) -> tuple[Image.Image, float]:
        real(loaded, request)
        return same, 1.0

    monkeypatch.setattr(LoadedPipeline, "generate", generate)
    result = json.loads(run("compare", "a cat", *SMALL, "--json").out)
    assert result["identical"] is True
    assert result["psnr"] is None
    assert result["ssim"] == pytest.approx(1)


@pytest.mark.parametrize("size", [(64, 96), (512, 512)])
def test_side_by_side_shows_every_pixel_of_both(size: tuple[int, int]) -> None:
    left, right = Image.new("RGB", size, "#ff0000"), Image.new("RGB", size, "#0000ff")
    sheet = side_by_side([(left, "one", "remark"), (right, "two", "remark")], "a caption " * 40)
    scale = 1 if size[0] >= 320 else -(-320 // size[0])
    counts = {colour: count for count, colour in sheet.getcolors(sheet.width * sheet.height) or []}
    assert counts[(255, 0, 0)] == counts[(0, 0, 255)] == size[0] * size[1] * scale**2
