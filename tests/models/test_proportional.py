"""Tokens that are alike can be merged without a trace, if keys weigh as much as the tokens they stand for."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from checks import SCOPES, SMALL, attention_lengths, close, in_turn, key_lengths
from tiny_models import TINY_MODELS, TinyModel, made
from tiny_models import tiny as tiny_named
from torch import Tensor, nn

import tokenmerge as tm

QUARTERS = tm.ToMA(ratio=0.75, tile=(2, 2), **SMALL)


def alike_in_squares(tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
    """(B, N, C): the tokens of each 2 x 2 square replaced by its first."""
    whole = tokens.unflatten(1, grid)
    *_, rows, columns = [torch.arange(side) // 2 * 2 for side in grid]
    return whole.index_select(-3, rows).index_select(-2, columns).flatten(1, len(grid))


def make_alike(model: nn.Module, tiny: TinyModel, grid: tuple[int, ...]) -> None:
    """Have the tokens of each square be alike, in content and in position, from where they are made on."""
    count = torch.Size(grid).numel()

    def content_alike(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if output.dim() == 3:
            return alike_in_squares(output, grid)
        sides = tuple(output.shape[2:])  # a convolution's: (B, C, ...)
        return alike_in_squares(output.flatten(2).transpose(1, 2), sides).transpose(1, 2).unflatten(2, sides)

    def positions_alike(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return tuple(rows_alike(rows) for rows in output)

    def rows_alike(rows: Tensor) -> Tensor:
        """(S, D) or (B, S, ...), with text before the tokens of the grid."""
        if rows.dim() == 2:
            return rows_alike(rows[None])[0]
        text = rows.shape[1] - count
        if text < 0:  # text alone
            return rows
        image = alike_in_squares(rows[:, text:].flatten(2), grid).view_as(rows[:, text:])
        return torch.cat([rows[:, :text], image], dim=1)

    for name, module in model.named_modules():
        if name.split(".")[-1] in tiny.makes_tokens:
            module.register_forward_hook(content_alike)
        if name in tiny.makes_positions:
            module.register_forward_hook(positions_alike)


ALIKE = [tiny for tiny in TINY_MODELS if tiny.makes_tokens]


@in_turn("tiny, scope", SCOPES, ALIKE)
def test_merging_what_is_alike_changes_nothing(tiny: TinyModel, scope: Any) -> None:
    model = made(tiny.build)
    grid = tiny.grid(8, 8)
    make_alike(model, tiny, grid)
    before = tiny.call(model, [1, 2], grid)
    with tm.merged(model, dataclasses.replace(QUARTERS, scope=scope)), key_lengths() as keys:
        close(tiny.call(model, [1, 2], grid), before)
    assert max(keys) == 2**tiny.video * 16 + tiny.text
    with tm.merged(model, dataclasses.replace(QUARTERS, scope=scope, proportional=False)):
        unweighted = tiny.call(model, [1, 2], grid)
    # Squares of one size all weigh the same among themselves, but not against text in the same attention.
    assert torch.allclose(unweighted, before, atol=1e-5) == (tiny.text == 0)


@in_turn(
    "what, config",
    [
        tm.SampledKeys(**SMALL),
        dataclasses.replace(QUARTERS, keys="sampled"),
        dataclasses.replace(QUARTERS, keys="all"),
        dataclasses.replace(QUARTERS, keys="all", parts=("self",)),
    ],
    ALIKE,
)
def test_separate_keys_leave_no_trace_either(what: TinyModel, config: Any) -> None:
    """Equal tokens, of which fewer keys or fewer queries are left, before attention or inside it."""
    model = made(what.build)
    grid = what.grid(8, 8)
    make_alike(model, what, grid)
    before = what.call(model, [1, 2], grid)
    with attention_lengths() as lengths, tm.merged(model, config):
        close(what.call(model, [1, 2], grid), before)
    queries = 64 if isinstance(config, tm.SampledKeys) else 16
    keys = 64 if config.keys == "all" else 16
    asked, read, every = (2**what.video * tokens + what.text for tokens in (queries, keys, 64))
    assert (asked, read) in lengths
    assert (every, every) not in lengths


def test_keys_of_what_a_mask_keeps_are_all_there() -> None:
    what = tiny_named("pixart")
    model = made(what.build)
    keep = torch.zeros(8, 8)
    keep[:2, :4] = 1  # 8 tokens, and 14 tiles of the others
    config = tm.ToMA(ratio=0.75, keys="sampled", tile=(2, 2), **SMALL)
    with tm.merged(model, config, keep=keep), key_lengths() as keys:
        what.call(model, [1], what.grid(8, 8))
    assert 8 + 14 in keys


def test_keys_that_stand_for_as_many_need_no_weights() -> None:
    """With one key of each 2 x 2 tile, all weigh the same: attention is as without a mask, and gets none."""
    what = tiny_named("sd15")
    model = made(what.build)
    grid = what.grid(16, 16)
    images = []
    for proportional in (True, False):
        with tm.merged(model, tm.SampledKeys(proportional=proportional, **SMALL)) as handle:
            images.append(what.call(model, [1], grid))
            assert "mask of a row" not in str(handle.explain())
    assert torch.equal(*images)
    with tm.merged(model, tm.ToMA(ratio=0.5, keys="all", **SMALL)) as handle:
        what.call(model, [1], grid)
        assert "mask of a row" not in str(handle.explain())  # every key stands for itself
    with tm.merged(model, tm.ToMA(ratio=0.5, **SMALL)) as handle:
        what.call(model, [1], grid)
        assert "mask of a row" in str(handle.explain())
