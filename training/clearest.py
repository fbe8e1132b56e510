"""Chooses the photographs that show best what they are called: a small model learns more from few clear ones."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

MIDDLE = slice(4, 13)  # of 17 x 17 places: what a frame in the middle of the photograph shows
SHRINKAGE = 0.3  # of the covariance towards the identity
TYPICAL = 0.02  # weight of being near the mean of the group, relative to being far from the others


def clearness(maps: Tensor, labels: Tensor) -> Tensor:  # (N,)
    """How clearly maps (N, D, 17, 17) show their label (N,): its log-probability under one Gaussian a label.

    All Gaussians share a covariance. A photograph far from everything known counts as less clear.
    """
    middle = maps[:, :, MIDDLE, MIDDLE].float()
    rows = torch.cat([middle.mean((2, 3)), middle.std((2, 3))], dim=1)
    rows = (rows - rows.mean(0)) / rows.std(0)
    centres = torch.stack([rows[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    left = rows - centres[labels]
    precision = torch.linalg.inv(left.T @ left / len(rows) + SHRINKAGE * torch.eye(rows.shape[1]))
    offsets = rows[:, None] - centres
    logits = -0.5 * ((offsets @ precision) * offsets).sum(-1)
    own = labels[:, None]
    return (logits.log_softmax(1) + TYPICAL * logits).gather(1, own)[:, 0]


def clearest(scores: Tensor, names: list[str], count: int) -> list[int]:
    """The numbers of the `count` photographs of each name with the highest scores (N,), in ascending order."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for index in scores.argsort(descending=True).tolist():
        by_name[names[index]].append(index)
    return sorted(index for numbers in by_name.values() for index in numbers[:count])
