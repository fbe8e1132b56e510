"""What "Look inside" generates, against matrices that are known, and over a real recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_requests import small

from tokenmerge.api import denoisers_of
from tokenmerge.config.interfaces import BlockContext
from tokenmerge.engine.session import session_of
from tokenmerge.methods.linear import LinearOperator
from tokenmerge.methods.todo import ToDo
from tokenmerge.methods.toma import ToMA
from tokenmerge.methods.tomesd import ToMeSD
from tokenmerge.web import inside
from tokenmerge.web.bounds import read
from tokenmerge.web.recording import MergeView, record
from tokenmerge.web.runs import Cancelled, Watch
from tokenmerge.web.stages import STAGES, stages_of

GRID = (4, 4)
# Tokens 0 to 7 read from the first kept one, at token 5; 8 to 15 from the second, at token 10.
UP = torch.tensor([[0.9, 0.1]] * 8 + [[0.2, 0.8]] * 8)
DOWN = UP.T / UP.T.sum(dim=1, keepdim=True)


@pytest.fixture
def view() -> MergeView:
    operator = LinearOperator(DOWN.expand(2, -1, -1), UP.expand(2, -1, -1), destinations=torch.tensor([[5, 10]] * 2))
    return MergeView(GRID, operator, batch=2, order=None)


def test_a_view_reads_the_matrices_of_the_operator(view: MergeView) -> None:
    assert view.owners().tolist() == [0] * 8 + [1] * 8
    assert view.destinations().tolist() == [5, 10]
    np.testing.assert_allclose(view.reads(3), [0.9, 0.1])
    np.testing.assert_allclose(view.gathered(1), DOWN[1])


def test_a_view_puts_places_back_on_the_grid() -> None:
    """The same image, its tokens standing in reverse."""
    reverse = torch.arange(15, -1, -1)
    operator = LinearOperator(DOWN[:, reverse][None], UP[reverse][None], destinations=torch.tensor([[10, 5]]))
    view = MergeView(GRID, operator, batch=1, order=reverse)
    assert view.owners().tolist() == [0] * 8 + [1] * 8
    assert view.destinations().tolist() == [5, 10]
    np.testing.assert_allclose(view.reads(3), [0.9, 0.1])
    np.testing.assert_allclose(view.gathered(0), DOWN[0])


@pytest.mark.parametrize("config", [ToMA(ratio=0.5), ToMA.paper(0.75), ToMeSD(ratio=0.5), ToDo()])
def test_every_kind_of_operator_can_be_viewed(config: Any) -> None:
    tokens = torch.randn(1, 256, 8)
    layout = config.layout((16, 16))
    operators = config.plan(tokens, layout, BlockContext("block", 0, 1), None)
    operator = operators.queries or operators.keys
    view = MergeView((16, 16), operator, batch=1, order=None)
    merged = operator.merge(tokens)[0].numpy()
    kept = 5
    np.testing.assert_allclose(view.gathered(kept) @ tokens[0].numpy(), merged[kept], atol=1e-5)
    np.testing.assert_allclose(view.reads(77) @ merged, operator.unmerge(operator.merge(tokens))[0, 77], atol=1e-5)
    assert view.owners()[77] == view.reads(77).argmax()
    # A destination stands for itself.
    assert view.owners()[view.destinations()[kept]] == kept


def test_merged_tokens_are_generated_in_their_mean_colour(view: MergeView) -> None:
    top_dark = np.zeros((64, 64, 3), dtype=np.uint8)
    top_dark[:16] = 100  # a quarter of the image: half of the first group
    top_dark[32:] = (0, 0, 200)
    rendered = np.asarray(inside.plot_merges(Image.fromarray(top_dark), view))
    cell = rendered.shape[0] // 4
    assert rendered[cell // 2, cell // 2].tolist() == [50, 50, 50]
    assert rendered[3 * cell + cell // 2, cell // 2].tolist() == [0, 0, 200]
    assert rendered[cell + cell // 2, cell + cell // 2].tolist() == [255, 255, 255]  # the dot at token 5
    assert rendered[2 * cell, cell // 2, 2] < 120  # the line between the groups, darker than what it lies on
    assert rendered[cell, cell // 2].tolist() == [50, 50, 50]  # none within a group


def test_a_token_that_is_alone_shows_the_image_as_it_is() -> None:
    identity = torch.eye(16)[None]
    view = MergeView(GRID, LinearOperator(identity, identity, destinations=torch.arange(16)[None]), 1, None)
    wanted = Image.new("RGB", (64, 64), (10, 200, 30))
    rendered = np.asarray(inside.plot_merges(wanted, view))
    assert (rendered == (10, 200, 30)).all()  # neither dots nor lines


def test_the_weight_map_is_warmest_where_most_is_gathered(view: MergeView) -> None:
    rendered, about = inside.plot_weights(Image.new("RGB", (64, 64), "white"), view, token=3)
    pixels = np.asarray(rendered).astype(int)
    cell = pixels.shape[0] // 4
    own, other = pixels[cell // 2, cell // 2], pixels[3 * cell + cell // 2, cell // 2]
    assert own[0] - own[2] > other[0] - other[2]  # redder
    assert "row 0, column 3 reads 90% of its value from the destination at row 1, column 1" in about
    assert "16 tokens are merged" in about


@pytest.mark.parametrize(
    ("x", "y", "token"), [(0, 0, (0, 0)), (767, 0, (0, 3)), (200, 600, (3, 1)), (768, 768, (3, 3))]
)
def test_a_click_finds_its_token(x: int, y: int, token: tuple[int, int]) -> None:
    assert inside.token_under(GRID, x, y) == token


def test_the_token_to_begin_with_has_the_largest_group() -> None:
    """Ten tokens read from the second kept one, at token 10, and six from the first."""
    up = torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 10)
    operator = LinearOperator(up.T[None], up[None], destinations=torch.tensor([[5, 10]]))
    assert inside.telling_token(MergeView(GRID, operator, 1, None)) == 10


def test_stages_add_up_to_the_whole() -> None:
    laps = {"from scratch": 3.0, "repeated": 1.0, "weights": 0.5, "merge": 0.25, "reorder": 0.25, "attention": 2.0}
    stages = stages_of(laps, seconds=10.0, overhead=0.5)
    assert list(stages) == list(STAGES)
    assert (stages["selection"], stages["weights"], stages["merge"]) == (2.0, 1.5, 0.5)
    # What was repeated, and what was spent on looking, is no part of the image.
    assert sum(stages.values()) == pytest.approx(8.5)


def test_bars_are_as_long_as_the_runs() -> None:
    html = inside.stage_bars({"unmerged": {"attention": 4.0}, "merged": {"attention": 1.0, "MLP": 1.0}})
    assert "width:100.000%" in html
    assert html.count("width:25.000%") == 2
    assert "merged: 2.00 s" in html


@pytest.mark.parametrize("method", ["toma", "toma-stack", "toma-global", "tomesd", "todo"])
def test_a_recording_sees_every_merging_block(studio: Any, method: str) -> None:
    scope = {"toma-stack": "stack"}.get(method, "site")
    region = "stripe" if method == "toma-global" else "tile"
    parts = ["self"] if method in ("tomesd", "todo") else ["self", "cross", "mlp"]
    every = 1 if method == "tomesd" else 10
    inputs = small(method=method, scope=scope, parts=parts, region=region, select_every=every, seed=61)
    recording = record(studio, read(inputs), Watch())
    assert recording.steps == [0, 1]
    assert len(recording.blocks) == 3  # the fourth has an 8 x 8 grid, too small to merge
    view = recording.views[recording.blocks[0], 1]
    assert view.grid == (16, 16)
    assert len(view.destinations()) == (11 * 11 if method == "todo" else 128)
    assert recording.clusters[recording.blocks[0], 1].shape == (256,)
    merged, unmerged = recording.stages["merged"], recording.stages["unmerged"]
    assert merged["attention"] > 0
    assert merged["merge"] > 0
    assert (unmerged["selection"], unmerged["merge"], unmerged["unmerge"]) == (0, 0, 0)
    assert bool(recording.overlaps) == method.startswith("toma-") or method == "toma"
    assert bool(recording.overlaps) != bool(recording.no_overlaps)
    assert session_of(denoisers_of(studio.load("tiny-random").pipe)[0]) is None


def test_a_full_step_has_nothing_to_show(studio: Any) -> None:
    recording = record(studio, read(small(method="tile-mean", scope="stack", steps=4, seed=64)), Watch())
    assert recording.steps == [1, 3]  # of so few every second runs full
    assert len(recording.blocks) == 3


def test_the_recorded_image_is_the_compared_one(studio: Any) -> None:
    request = read(small(seed=62))
    compared = studio.compare(request, Watch())
    assert np.array_equal(np.asarray(record(studio, request, Watch()).image), np.asarray(compared.merged.image))


def test_a_recording_can_be_cancelled(studio: Any) -> None:
    request = read(small(seed=63))
    watch = Watch()
    watch.stop.set()
    with pytest.raises(Cancelled):
        record(studio, request, watch)
    assert session_of(denoisers_of(studio.load("tiny-random").pipe)[0]) is None


def test_the_overlap_of_the_chosen_block_stands_out() -> None:
    values = {"down_blocks.0.attentions.0": [1.0, 0.5], "mid_block.attentions.0": [1.0, 0.6]}
    svg = inside.plot_overlap(values, "mid_block.attentions.0")
    assert "mid 0" in svg
    assert "down" not in svg
