"""`tokenmerge bench --submit`: one file with times, images' PSNR, device and versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmerge.bench.subject import Subject
from tokenmerge.bench.submit import submission
from tokenmerge.cli.main import main
from tokenmerge.presets import NAMES


def test_a_submission_says_what_ran_where_and_how_close_it_is(subject: Subject) -> None:
    said: list[str] = []
    found = submission(subject, {"model": "small"}, 4, 1, image_models=("emoji-sd",), say=said.append)
    assert json.loads(json.dumps(found)) == found
    assert found["settings"] == {"model": "small", "steps": 4, "repeats": 1}
    assert found["machine"]["versions"]["torch"]
    methods = ["none", "half of the steps", *(f"preset {name}" for name in NAMES)]
    assert [row["method"] for row in found["generations"]] == methods
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 for row in found["generations"])
    assert found["generations"][0]["speedup"] == 1
    images = {row["method"]: row for row in found["images"]}
    assert set(images) == {"none", *(f"preset {name}" for name in NAMES)}
    assert images["preset quality"]["psnr"] is None or images["preset quality"]["psnr"] > 15
    assert len(said) == 2 * len(methods) + 4


def test_what_it_does_not_measure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--submit", str(tmp_path / "gpu.json"), "--methods", "toma"]) == 2
    assert "--methods is not for --submit" in capsys.readouterr().err
    assert not (tmp_path / "gpu.json").exists()
