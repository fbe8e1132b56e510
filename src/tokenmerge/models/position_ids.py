"""Where tokens stand, from position ids and masks, whose values are read once for all steps of an image.

Flux models get ids of one row a token: which image, row and column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.ops.compiling import outside_compile
from tokenmerge.ops.host import changes_of, read_back

# Reading ids waits for the device. Pipelines pass the same tensor at every step, so it is read once a generation.
_READ: Any = WeakTensorKeyDictionary()
Read = TypeVar("Read")


@outside_compile
def grid_of_ids(ids: Tensor, text: int = 0) -> tuple[int, int]:
    """Rows and columns of the image being made. Tokens of reference images, which follow it, do not count.

    ids: (N, axes) or (B, N, axes): which image, row, column; Flux.2 has a fourth axis, which images do not use.
    text: how many ids of text stand before those of the image.

    >>> rows, columns = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    >>> grid_of_ids(torch.stack([torch.zeros(2, 3), rows, columns], dim=-1).view(6, 3))
    (2, 3)
    """
    return _once(ids, partial(_grid_of, text), text)


@outside_compile
def reference_grids(ids: Tensor, text: int = 0) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each reference image, whose ids follow those of the image being made.

    >>> reference_grids(torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1], [2, 0, 0]]))
    ((2, 2), (1, 1))
    """
    return _once(ids, partial(_references_of, text), -1 - text)


@outside_compile
def lengths_of(mask: Tensor) -> tuple[int, ...]:
    """How many tokens of each text are not padding.

    mask: (B, T), 1 or True where a token is the text's.

    >>> lengths_of(torch.tensor([[1, 1, 0], [1, 1, 1]]))
    (2, 3)
    """
    return _once(mask, _lengths_of, 0)


def _once(values: Tensor, read: Callable[[Tensor], Read], how: int) -> Read:
    asked = changes_of(values), how
    known: dict[Any, Read] = _READ.setdefault(values, {})
    if asked not in known:
        if any(version != asked[0] for version, _ in known):
            known.clear()  # it was written into since
        known[asked] = read(values)
    return known[asked]


def _lengths_of(mask: Tensor) -> tuple[int, ...]:
    if mask.is_meta:
        raise MergeRuntimeError(
            "the mask of the text is on the meta device, where it has no values to tell lengths from: pass a mask that "
            "is on the CPU."
        )
    return tuple(read_back(mask.sum(dim=1)))


def _grid_of(text: int, ids: Tensor) -> tuple[int, int]:
    if ids.is_meta:
        raise MergeRuntimeError(
            "img_ids are on the meta device, where they have no values to tell rows and columns from: pass img_ids "
            "that are on the CPU."
        )
    places = (ids if ids.dim() == 2 else ids[0])[text:, :3]
    # The image's own tokens come first and share their first id; a reference has another one.
    in_image = (places[:, 0] == places[0, 0]).cumprod(dim=0)
    # Tokens come row by row, so the first row lasts until the row's id changes.
    in_row = (places[:, 1] == places[0, 1]).cumprod(dim=0) * in_image
    own, columns = read_back(torch.stack([in_image.sum(), in_row.sum()]))
    if own % columns:
        raise MergeRuntimeError(
            f"img_ids hold {own} tokens in rows of {columns}, which is not a grid: pass the ids of a whole image, row "
            f"by row."
        )
    return own // columns, columns


def _references_of(text: int, ids: Tensor) -> tuple[tuple[int, int], ...]:
    rows, columns = _grid_of(text, ids)
    places = (ids if ids.dim() == 2 else ids[0])[text + rows * columns :, :2]
    grids: list[list[int]] = []  # of each reference the lengths of its rows
    before: tuple[float, float] | None = None
    for image, row in read_back(places):
        if before is None or image != before[0] or row < before[1]:
            grids.append([0])
        elif row != before[1]:
            grids[-1].append(0)
        grids[-1][-1] += 1
        before = image, row
    if any(len(set(lengths)) > 1 for lengths in grids):
        raise MergeRuntimeError(
            "img_ids hold a reference image whose rows differ in length, which is not a grid: pass the ids of whole "
            "images, row by row, or leave reference_ratio out."
        )
    return tuple((len(lengths), lengths[0]) for lengths in grids)


def image_ids(rows: int, columns: int, axes: int) -> Tensor:
    """(rows * columns, axes): the ids of an image, as pipelines make them. On the CPU, so that they have values."""
    ids = torch.zeros(rows, columns, axes)
    ids[..., 1] = torch.arange(rows)[:, None]
    ids[..., 2] = torch.arange(columns)
    return ids.view(-1, axes)
