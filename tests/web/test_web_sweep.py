"""Sweeps: every pair is generated or its absence explained, and all of it is shown."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from small_requests import small

from tokenmerge.runtime.fidelity import fidelity
from tokenmerge.web.bounds import read, read_sweep
from tokenmerge.web.runs import Cancelled, Watch
from tokenmerge.web.sweep import plot_grid, plot_quality_against_time, sweep

REQUESTED = read(small(seed=71)).image
PAIRS = read_sweep(["toma", "tomesd"], [0.5, 0.9])
RIVALS = read_sweep(["preset balanced", "fewer-steps", "first-block-cache"], [0.5])


@pytest.fixture(scope="module")
def stages(studio: Any) -> list[Any]:
    return list(sweep(studio, "tiny-random", REQUESTED, PAIRS, Watch()))


def test_it_grows_by_an_image_at_a_time(stages: list[Any]) -> None:
    assert [len(swept.cells) for swept in stages] == [0, 1, 2, 3, 4]
    assert [(cell.method, cell.ratio) for cell in stages[-1].cells] == PAIRS


def test_its_figures_are_those_of_its_images(stages: list[Any]) -> None:
    swept = stages[-1]
    for cell in swept.cells[:3]:
        assert cell.fidelity == fidelity(swept.unmerged[0].image, cell.shot.image)
        row = swept.unmerged[["toma", "tomesd"].index(cell.method)]
        assert cell.unmerged_seconds == row.seconds
        assert f"{row.seconds / cell.shot.seconds:.2f}x" in plot_grid(swept)


def test_the_unmerged_image_is_timed_before_each_method_whatever_is_kept(studio: Any) -> None:
    studio.compare(read(small(seed=72)), Watch())
    assert studio.has_unmerged("tiny-random", read(small(seed=72)).image)
    reported: list[str] = []
    watch = Watch(lambda fraction, what: reported.append(what.split(":")[0]))
    *_, swept = sweep(studio, "tiny-random", read(small(seed=72)).image, PAIRS, watch)
    generated = [what for what, _ in itertools.groupby(what for what in reported if what != "warming up")]
    assert generated == ["unmerged", "toma, ratio 0.5", "toma, ratio 0.9", "unmerged", "tomesd, ratio 0.5"]
    assert len(swept.unmerged) == 2


def test_a_pair_that_cannot_be_is_explained_and_the_others_are_generated(stages: list[Any]) -> None:
    refused = stages[-1].cells[3]
    assert refused.shot is None
    assert refused.reason.startswith("Ratio is 0.9: with 1 kept in every cell")
    assert "Ratio is 0.9" in plot_grid(stages[-1])


def test_grid_and_plot_show_every_image(stages: list[Any]) -> None:
    grid = plot_grid(stages[-1])
    assert grid.count("<img ") == 4  # the unmerged one and three merged
    plot = plot_quality_against_time(stages[-1])
    assert plot.count(">toma<") == 1
    assert plot.count(">0.9<") == 1  # the one of toma


def test_it_can_be_cancelled_between_images(studio: Any) -> None:
    watch = Watch()
    running = sweep(studio, "tiny-random", REQUESTED, PAIRS, watch)
    next(running)
    watch.stop.set()
    with pytest.raises(Cancelled):
        next(running)


def test_presets_and_rivals_are_generated_or_explained(studio: Any) -> None:
    *_, swept = sweep(studio, "tiny-random", REQUESTED, RIVALS, Watch())
    balanced, fewer, cache = swept.cells
    assert balanced.shot is not None
    assert fewer.shot is not None
    assert fewer.fidelity != balanced.fidelity
    assert "denoises with a UNet" in cache.reason
    assert "preset balanced" in plot_quality_against_time(swept)
