"""The README's first table: what the committed metrics say, the fastest first."""

import json
from pathlib import Path

import pytest

from tokenmerge.errors import UsageError
from tokenmerge.eval import front


def variant(name: str, ratio: float | None, speedup: float, psnr: float) -> dict:
    metrics = {"psnr": psnr, "ssim": 0.5, "lpips": 0.25, "fid": 12.0, "mse": 3.0}
    return {
        "name": name,
        "ratio": ratio,
        "config": {"type": "ToMA"},
        "timing": {"speedup": {"value": speedup}},
        "metrics": {metric: {"value": value} for metric, value in metrics.items()},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    baseline = {"name": "baseline", "ratio": None, "config": None, "timing": {"speedup": {"value": 1.0}}, "metrics": {}}
    variants = [baseline, variant("slow", 0.5, 1.25, 40.126), variant("fast", None, 2.0, 20.0)]
    found = {"model": "emoji-sd", "image": {"steps": 20}, "variants": variants}
    (tmp_path / "metrics.json").write_text(json.dumps(found))
    monkeypatch.setattr(front, "FOLDERS", (tmp_path,))
    return tmp_path


def test_the_fastest_stands_first_and_the_baseline_nowhere(folder: Path) -> None:
    head, _, *rows = front.front_tables().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]
    assert cells == [
        ["`emoji-sd`, 20 steps", "r", "speed-up", "PSNR ↑", "SSIM ↑", "LPIPS ↓", "FID ↓"],
        ["fast", "", "2.00x", "20.00", "0.5000", "0.2500", "12.00"],
        ["slow", "0.5", "1.25x", "40.13", "0.5000", "0.2500", "12.00"],
    ]


def test_a_result_that_is_not_there_is_a_sentence(folder: Path) -> None:
    (folder / "metrics.json").unlink()
    with pytest.raises(UsageError, match=r"cannot be read.*Run this from the project's folder"):
        front.front_tables()
