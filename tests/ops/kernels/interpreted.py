"""Runs every kernel on the CPU, in Triton's interpreter, and prints how far it is from plain PyTorch.

TRITON_INTERPRET=1 must be set before Triton is imported, so this is a program and not a test.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from tokenmerge.ops import tiles as plain
from tokenmerge.ops.kernels import selection, tiles
from tokenmerge.ops.selection import select_facility_location

GRIDS = {"image": ((6, 8), (3, 2)), "video": ((4, 4, 6), (2, 2, 3)), "one frame": ((1, 4, 4), (1, 2, 2))}


def tokens_of(grid: tuple[int, ...], channels: int) -> Tensor:
    return torch.randn(2, int(torch.tensor(grid).prod()), channels)


def farthest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def differences() -> dict[str, float]:
    found = {}
    for name, (grid, count) in GRIDS.items():
        tokens = tokens_of(grid, 5)
        means = plain.mean_of_tiles(tokens, grid, count)
        found[f"mean, {name}"] = farthest(tiles.mean_of_tiles(tokens, grid, count), means)
        across = tokens.transpose(1, 2).contiguous().transpose(1, 2)  # as a UNet's norm gives them
        found[f"mean of other strides, {name}"] = farthest(tiles.mean_of_tiles(across, grid, count), means)
        errors, weights = torch.randn(2, 2, *tokens.shape[1:]), torch.randn(2, 2, 1, 1)
        channels_first = errors.transpose(2, 3).contiguous().transpose(2, 3)  # as a UNet has them
        for used in range(3):
            expected = plain.spread_between_tiles(means, grid, count) + (weights * errors)[:, :used].sum(dim=1)
            for order, recorded in {"": errors, ", channels first": channels_first}.items():
                got = tiles.unmerge_corrected(means, grid, count, recorded[:, :used], weights[:, :used])
                found[f"unmerge with {used} errors, {name}{order}"] = farthest(got, expected)
    wide = tokens_of((4, 4), 300).half() * 1e4
    found["mean in half precision"] = farthest(
        tiles.mean_of_tiles(wide, (4, 4), (2, 2)).float(), plain.mean_of_tiles(wide.float(), (4, 4), (2, 2))
    ) / float(wide.abs().max())
    return found


def wrong_choices() -> int:
    """How many destinations differ from those of plain PyTorch; similarities in steps, as ToMA has them."""
    wrong = 0
    for candidates, tokens, count in ((16, 16, 8), (9, 9, 4), (16, 32, 3), (4, 4, 4), (12, 12, 1)):
        similarity = (torch.rand(2, 3, candidates, tokens) * 2 - 1).mul(4096).round().div(4096)
        similarity[0, 0] = 0.5  # a flat region: ties go to the lowest index
        available = torch.ones(3, candidates, dtype=torch.bool)
        available[1, candidates - (candidates - count) :] = False
        expected = select_facility_location(similarity, count, available)
        wrong += int((selection.facility_location(similarity, count, available) != expected).sum())
    return wrong


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({"differences": differences(), "wrong": wrong_choices()}))
