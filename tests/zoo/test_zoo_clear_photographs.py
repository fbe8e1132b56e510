"""Which photographs are trained on, and two processes that train one model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from training.clearest import clearest, clearness
from training.exchange import EVERY, Exchange


def test_a_photograph_in_the_middle_of_its_group_is_clearer_than_one_between_groups() -> None:
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    maps = torch.randn(60, 4, 17, 17) * 0.1
    maps[torch.arange(60), labels] += 3.0  # each group is bright in one channel
    maps[0, 0] -= 1.5
    maps[0, 1] += 1.5  # halfway to the second group
    scores = clearness(maps, labels)
    assert scores[labels == 0].argmin() == 0


def test_what_stands_at_the_edges_of_a_photograph_does_not_count() -> None:
    torch.manual_seed(0)
    labels = torch.arange(30) % 2
    maps = torch.randn(30, 3, 17, 17)
    before = clearness(maps, labels)
    maps[:, :, :3] = 100.0
    torch.testing.assert_close(clearness(maps, labels), before)


def test_the_clearest_of_each_name_are_taken() -> None:
    scores = torch.tensor([0.1, 0.9, 0.5, 0.7, 0.2])
    assert clearest(scores, ["a", "a", "a", "b", "b"], 2) == [1, 2, 3, 4]
    assert clearest(scores, ["a", "a", "a", "b", "b"], 1) == [1, 3]


def test_two_workers_move_to_their_mean(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2) for _ in range(2)]
    before = [model.weight.detach().clone() for model in models]
    workers = [Exchange(model, tmp_path, number) for number, model in enumerate(models)]
    workers[0].meet(EVERY - 1)
    assert not list(tmp_path.iterdir())
    workers[0].meet(EVERY)
    torch.testing.assert_close(models[0].weight, before[0])  # nothing to read yet
    workers[1].meet(EVERY)
    torch.testing.assert_close(models[1].weight, (before[0] + before[1]) / 2)
    workers[0].meet(2 * EVERY)
    torch.testing.assert_close(models[0].weight, (before[0] + before[1]) / 2)  # what the other had before it moved
    workers[0].meet(3 * EVERY)
    torch.testing.assert_close(models[0].weight, (before[0] + before[1]) / 2)  # read once: the other did not go on


def test_what_an_earlier_run_left_is_not_read(tmp_path: Path) -> None:
    old, new = nn.Linear(2, 2), nn.Linear(2, 2)
    Exchange(old, tmp_path, 1).meet(EVERY)
    kept = new.weight.detach().clone()
    Exchange(new, tmp_path, 0).meet(EVERY)
    assert torch.equal(new.weight, kept)
