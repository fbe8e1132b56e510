"""Who is ahead at equal speed, worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tokenmerge.errors import UsageError
from tokenmerge.eval.front_cells import Cell, cells_of, value_at
from tokenmerge.eval.fronts import main, write_fronts


def variant(name: str, saved: float, psnr: float, ours: bool = False, lpips: float | None = None) -> dict[str, Any]:
    """Half as fast in time as in multiply-adds, beyond 1."""
    metrics = {"psnr": {"value": psnr}, "lpips": {"value": 1 / psnr if lpips is None else lpips}}
    timing = {"speedup": {"value": 1 + (saved - 1) / 2}}
    return {"name": name, "ours": ours, "config": {}, "saved": saved, "timing": timing, "metrics": metrics}


def run(*variants: dict[str, Any]) -> dict[str, Any]:
    baseline = {"name": "baseline", "ours": False, "config": None, "metrics": {}}
    image = {"width": 256, "height": 256, "steps": 20}
    return {"model": "photo-flux", "image": image, "pairs": 32, "variants": [baseline, *variants]}


RUN = run(
    variant("fewer steps", 1.25, 44),
    variant("fewer steps", 2.4, 30),
    variant("fewer steps", 4.0, 24),
    variant("cache", 1.0, 100),  # saved nothing: no end of its curve
    variant("cache", 1.5, 42),
    variant("cache", 2.0, 38),
    variant("tokenmerge", 1.5, 46, ours=True),
    variant("tokenmerge", 2.4, 36, ours=True),
)


def at(run: dict[str, Any], speedup: float, axis: str = "multiply-adds") -> Cell:
    return next(cell for cell in cells_of(run) if (cell.axis, cell.speedup) == (axis, speedup))


def test_between_settings_quality_is_linear_in_the_logarithm_of_the_speedup() -> None:
    psnr = at(RUN, 2.0).metrics["psnr"]
    assert psnr.fewer_steps == pytest.approx(44 - 14 * math.log(2 / 1.25) / math.log(2.4 / 1.25))
    assert psnr.rival is not None
    assert psnr.ours is not None
    assert (psnr.rival.name, psnr.rival.value) == ("cache", 38)
    assert psnr.ours.value == pytest.approx(46 - 10 * math.log(2 / 1.5) / math.log(2.4 / 1.5))
    assert psnr.margin == pytest.approx(psnr.ours.value - 38)


def test_between_neighbours_only() -> None:
    """A bad setting between two good ones is on the curve, and one that is slower and worse than another is not."""
    assert value_at([(1.0, 40.0), (2.0, 20.0), (4.0, 19.0)], 2.0, True) == 20.0
    assert value_at([(1.0, 30.0), (2.0, 20.0), (4.0, 25.0)], 1.9, True) == 25.0
    assert value_at([(1.0, 0.1), (2.0, 0.3)], math.sqrt(2), False) == pytest.approx(0.2)


def test_nothing_is_assumed_between_settings_far_apart() -> None:
    """A straight line over a wide gap would flatter a method, because real curves sag."""
    assert value_at([(1.25, 49.0), (3.5, 23.0)], 2.0, True) == 23.0
    assert value_at([(1.25, 49.0), (2.0, 32.0), (3.5, 23.0)], 2.0, True) == 32.0


def test_a_setting_within_a_hundredth_counts_as_that_fast() -> None:
    """A cache with half of the steps runs the embeddings at the others too, and is just short of twice as fast."""
    assert value_at([(1.998, 32.0)], 2.0, True) == 32.0
    assert value_at([(1.97, 32.0)], 2.0, True) is None


def test_a_faster_setting_counts_and_a_slower_one_does_not() -> None:
    assert at(RUN, 1.25).metrics["psnr"].ours.value == 46  # type: ignore[union-attr]
    assert at(RUN, 1.25).metrics["psnr"].rival.value == 44  # type: ignore[union-attr]
    assert at(RUN, 3.0).metrics["psnr"].ours is None
    assert not at(RUN, 3.0).won
    assert at(RUN, 3.0).metrics["psnr"].rival.name == "fewer steps"  # type: ignore[union-attr]


def test_won_is_as_good_in_both_metrics_and_two_decibels_over_fewer_steps() -> None:
    assert at(RUN, 1.25).won
    assert at(run(variant("fewer steps", 1.25, 44), variant("ours", 1.25, 46, True)), 1.25).won
    assert not at(run(variant("fewer steps", 1.25, 44.1), variant("ours", 1.25, 46, True)), 1.25).won
    worse_lpips = run(variant("cache", 1.25, 40, lpips=0.1), variant("ours", 1.25, 46, True, lpips=0.2))
    assert at(worse_lpips, 1.25).metrics["psnr"].won
    assert not at(worse_lpips, 1.25).won


def test_time_has_its_own_cells() -> None:
    assert at(RUN, 1.25, "time").metrics["psnr"].ours.value == 46  # type: ignore[union-attr]
    assert at(RUN, 2.0, "time").metrics["psnr"].ours is None


def test_without_rivals_or_without_ours_there_are_no_cells() -> None:
    assert cells_of(run(variant("ours", 2, 40, True))) == []
    assert cells_of(run(variant("cache", 2, 40))) == []


def test_the_command_writes_table_json_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, found in {"a": RUN, "b": {**RUN, "image": {**RUN["image"], "steps": 10}}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    assert main([str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "front.md").read_text()
    assert capsys.readouterr().out.strip() == text.strip()
    assert "Speed-up in multiply-adds: 6 of 8 cells won" in text
    found = json.loads((tmp_path / "out" / "front.json").read_text())
    assert found["summary"]["multiply-adds"]["cells"] == 8
    assert found["summary"]["multiply-adds"]["not_reached"] == 2
    assert sum(cell["won"] for cell in found["cells"] if cell["axis"] == "multiply-adds") == 6
    plot = (tmp_path / "out" / "front-photo-flux-multiply-adds.svg").read_text()
    assert all(name in plot for name in ("tokenmerge", "fewer steps", "cache", "10 steps", "20 steps"))
    assert (tmp_path / "out" / "front-photo-flux-time.png").stat().st_size > 10_000


def test_files_that_hold_no_front_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        write_fronts([tmp_path / "none.json"], tmp_path / "out")
    (tmp_path / "one.json").write_text(json.dumps(run(variant("cache", 2, 40))))
    with pytest.raises(UsageError, match=r"none of these runs .* run an experiments/front"):
        write_fronts([tmp_path / "one.json"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
