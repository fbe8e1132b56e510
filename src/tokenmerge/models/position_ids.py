"""The grid of an image from the position ids that Flux models get: one row a token, with its image, row and column."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.ops.compiling import outside_compile

# Reading ids waits for the device. Pipelines pass the same tensor at every step, so it is read once a generation.
_READ: Any = WeakTensorKeyDictionary()


@outside_compile
def grid_of_ids(ids: Tensor) -> tuple[int, int]:
    """Rows and columns of the image being made. Tokens of reference images, which follow it, do not count.

    ids: (N, axes) or (B, N, axes): which image, row, column; Flux.2 has a fourth axis, which images do not use.

    >>> rows, columns = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    >>> grid_of_ids(torch.stack([torch.zeros(2, 3), rows, columns], dim=-1).view(6, 3))
    (2, 3)
    """
    version = None if ids.is_inference() else ids._version
    known = _READ.get(ids)
    if known is None or known[0] != version:
        known = version, _read(ids)
        _READ[ids] = known
    grid: tuple[int, int] = known[1]
    return grid


def _read(ids: Tensor) -> tuple[int, int]:
    if ids.is_meta:
        raise MergeRuntimeError(
            "img_ids are on the meta device, where they have no values to tell rows and columns from: pass img_ids "
            "that are on the CPU."
        )
    places = (ids if ids.dim() == 2 else ids[0])[:, :3]
    # The image's own tokens come first and share their first id; a reference has another one.
    own = int((places[:, 0] == places[0, 0]).cumprod(dim=0).sum())
    # Tokens come row by row, so the first row lasts until the row's id changes.
    columns = int((places[:own, 1] == places[0, 1]).cumprod(dim=0).sum())
    if own % columns:
        raise MergeRuntimeError(
            f"img_ids hold {own} tokens in rows of {columns}, which is not a grid: pass the ids of a whole image, row "
            f"by row."
        )
    return own // columns, columns


def image_ids(rows: int, columns: int, axes: int) -> Tensor:
    """(rows * columns, axes): the ids of an image, as pipelines make them. On the CPU, so that they have values."""
    ids = torch.zeros(rows, columns, axes)
    ids[..., 1] = torch.arange(rows)[:, None]
    ids[..., 2] = torch.arange(columns)
    return ids.view(-1, axes)
