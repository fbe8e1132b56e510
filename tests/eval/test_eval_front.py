"""The README's table: what the committed fronts say at equal speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmerge.eval import front


def variant(name: str, saved: float, psnr: float, ours: bool = False) -> dict[str, Any]:
    metrics = {"psnr": {"value": psnr}, "lpips": {"value": 1 / psnr}}
    timing = {"speedup": {"value": saved}}
    return {"name": name, "ours": ours, "config": {}, "saved": saved, "timing": timing, "metrics": metrics}


def write(folder: Path, *variants: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    image = {"width": 256, "height": 256, "steps": 20}
    run = {"model": "emoji-sd", "image": image, "pairs": 8, "variants": list(variants)}
    (folder / "metrics.json").write_text(json.dumps(run))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(front, "FOLDER", tmp_path)
    return tmp_path


def test_each_kind_has_its_best_at_each_speedup(results: Path) -> None:
    write(
        results / "front-emoji-sd-20",
        variant("tokenmerge", 2.0, 50, ours=True),
        variant("fewer steps", 3.0, 40),
        variant("DeepCache", 1.6, 30),
        variant("another cache", 1.5, 32),
        variant("tomesd", 1.2, 45),
    )
    head, _, *rows = front.front_table().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]
    assert cells[0] == ["model", "steps", "speed-up", "tokenmerge", "fewer steps", "best cache", "ToMeSD"]
    first = ["`emoji-sd`, 256 px", "20"]
    assert cells[1] == [*first, "1.5x", "50.0 dB, 0.020", "40.0 dB, 0.025", "32.0 dB, 0.031", "–"]
    assert cells[2] == [*first, "2x", "50.0 dB, 0.020", "40.0 dB, 0.025", "–", "–"]
    assert cells[3] == [*first, "3x", "–", "40.0 dB, 0.025", "–", "–"]


def test_runs_without_rivals_are_no_fronts(results: Path) -> None:
    write(results / "front-of-old", variant("tokenmerge", 2.0, 50, ours=True))
    assert front.front_table() == front.NO_FRONT
