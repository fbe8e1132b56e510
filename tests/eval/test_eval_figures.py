"""Figures that look inside the model: clusters, overlaps, and that nothing stays behind in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tokenmerge.config.correction import FullSteps
from tokenmerge.eval.figures.clusters import (
    HiddenState,
    chosen,
    kmeans,
    plot_clusters,
    recoloured,
    recorded_hidden_states,
)
from tokenmerge.eval.figures.overlap import overlap, overlaps, plot_overlaps, recorded_destinations
from tokenmerge.eval.figures.plotting import look_of
from tokenmerge.methods.toma import ToMA
from tokenmerge.runtime.tiny_random import build_tiny_random


def test_no_two_of_many_variants_look_alike():
    names = [f"variant {number}" for number in range(50)]
    assert len({tuple(look_of(name, names).values()) for name in names}) == 50


@pytest.fixture(scope="module")
def pipeline():
    pipe = build_tiny_random()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def generate(pipe, steps=3):
    generator = torch.Generator().manual_seed(0)
    return pipe("a cat", width=128, height=128, num_inference_steps=steps, generator=generator).images[0]


def hooks(pipe) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in pipe.unet.modules())


def test_kmeans_finds_groups_that_lie_apart():
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(4) * 20
    truth = torch.arange(4).repeat(25)
    labels = kmeans(centres[truth] + torch.randn(100, 4, generator=generator), 4)
    assert len({(int(a), int(b)) for a, b in zip(truth, labels, strict=True)}) == 4


def test_kmeans_takes_fewer_points_than_clusters_and_equal_points():
    assert kmeans(torch.zeros(3, 2), 12).tolist() == [0, 0, 0]


def test_a_cluster_gets_the_mean_colour_of_its_place():
    image = Image.fromarray(np.repeat([[[250, 0, 0], [0, 0, 250]]], 2, axis=0).astype(np.uint8))
    tokens = torch.tensor([[0.0], [9.0], [0.0], [9.0]])
    state = HiddenState("block", 0, (2, 2), tokens)
    assert recoloured(state, image).tolist() == [[[250, 0, 0], [0, 0, 250]]] * 2
    flat = HiddenState("block", 0, (2, 2), torch.zeros(4, 1))
    assert recoloured(flat, image)[0, 0].tolist() == [125, 0, 125]


def test_hidden_states_are_those_of_the_blocks_and_the_model_is_left_as_it_was(pipeline):
    before, count = generate(pipeline), hooks(pipeline)
    with recorded_hidden_states(pipeline, 3) as states:
        during = generate(pipeline)
    assert hooks(pipeline) == count
    assert np.array_equal(np.asarray(before), np.asarray(during))
    assert {state.step for state in states} == {0, 1, 2}
    assert {state.grid for state in states} == {(16, 16), (8, 8)}
    for state in states:
        assert state.tokens.shape[0] == state.grid[0] * state.grid[1]
    assert "<svg" in plot_clusters(states, before)


def test_steps_are_spread_with_both_ends():
    assert chosen(50, 6) == [0, 10, 20, 29, 39, 49]
    assert chosen(3, 6) == [0, 1, 2]
    assert chosen(1, 6) == [0]


def test_overlap_counts_shared_destinations():
    first = torch.tensor([[[0, 1, 2, 3]]])
    assert overlap(first, torch.tensor([[[3, 2, 1, 0]]])) == 1
    assert overlap(first, torch.tensor([[[3, 9, 8, 7]]])) == 0.25
    steps = [first, torch.tensor([[[0, 1, 8, 9]]]), torch.tensor([[[8, 9, 6, 7]]])]
    assert overlaps({"a": steps}, interval=2) == {"a": [1.0, 0.5, 1.0]}
    assert overlaps({"a": steps}, interval=10) == {"a": [1.0, 0.5, 0.0]}


@pytest.mark.parametrize("scope", ["site", "block", "stack"])
def test_destinations_are_recorded_at_every_step_in_every_layer(pipeline, scope):
    count = hooks(pipeline)
    with recorded_destinations(
        pipeline, ToMA(ratio=0.5, select_every=10, correction=FullSteps(within=0.3), scope=scope)
    ) as selections:
        generate(pipeline)
    assert hooks(pipeline) == count
    assert set(selections) == {
        "down_blocks.0.attentions.0.transformer_blocks.0",
        "up_blocks.1.attentions.0.transformer_blocks.0",
        "up_blocks.1.attentions.1.transformer_blocks.0",
    }
    assert {len(steps) for steps in selections.values()} == {3}
    assert next(iter(selections.values()))[0].shape == (2, 16, 8)  # guidance makes two samples of sixteen tiles
    values = overlaps(selections)
    assert all(line[0] == 1 and 0.3 < line[1] <= 1 for line in values.values())
    assert "<svg" in plot_overlaps(values)
