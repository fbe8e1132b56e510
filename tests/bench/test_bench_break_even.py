"""worthwhile(): with work in the place of time, so that what pays can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import tokenmerge as tm
from tokenmerge.autotune.break_even import worthwhile
from tokenmerge.runtime.timing import Clock

SIZE = (256, 256)  # 1,024 tokens of 16 channels, and 256 of 32


class Work(Clock):
    """A second for each operation: the same at every turn."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def calls_to_time(self, call: Callable[[], object]) -> int:
        return 1

    def mean_seconds(self, call: Callable[[], object], calls: int) -> float:
        # Fused attention would go uncounted on a CPU.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            call()
        return counter.get_total_flops()


def test_where_everything_pays_the_config_stays_as_it_was(unet: nn.Module) -> None:
    config = tm.ToMA(ratio=0.5, scope="site")
    found = worthwhile(unet, config, SIZE, clock=Work())
    assert found.config == config
    assert [(row.tokens, row.blocks, row.part) for row in found.timings] == [
        (tokens, blocks, part) for tokens, blocks in ((1024, 1), (256, 4)) for part in ("self", "cross", "mlp", "all")
    ]
    assert all(row.worthwhile and row.merged < row.unmerged for row in found.timings)


def test_times_are_those_of_the_block_unmerged_and_on_average_over_the_schedule(unet: nn.Module) -> None:
    """An MLP of C channels takes 12 C² multiply-adds a token; merging and unmerging 2 D C with D kept in a tile."""
    config = tm.ToMA(ratio=0.5, parts=("mlp",), min_tokens=1000, select_every=10)
    (row,) = worthwhile(unet, config, SIZE, clock=Work()).timings
    tokens, channels, tile = 1024, 16, 16
    saved = tokens * (12 * channels**2 // 2 - 2 * tile // 2 * channels)
    similarity, weights = tokens * tile * channels, tokens * tile // 2 * channels
    assert row.unmerged - row.merged == pytest.approx(2 * (saved - (similarity + weights) / 10))


def test_a_part_that_costs_more_than_it_saves_is_left_alone(unet: nn.Module) -> None:
    found = worthwhile(unet, tm.ToMA(ratio=0.5, region="tile+global"), SIZE, clock=Work())
    assert found.config.parts == ("self",)
    assert {row.part for row in found.timings if not row.worthwhile} == {"cross", "mlp"}


def test_a_level_that_gains_nothing_is_left_alone_and_explain_says_why(unet: nn.Module) -> None:
    """Of 128 tokens 64 are kept: 2 * 64 * C work to save 6 C², which pays for 32 channels and not for 16."""
    found = worthwhile(unet, tm.ToMA(ratio=0.5, parts=("mlp",), tile=(8, 16)), SIZE, clock=Work())
    assert found.config.skip_blocks == ("down_blocks.0.attentions.0.transformer_blocks.*",)
    with tm.merged(unet, found) as handle:
        explanation = handle.explain(SIZE)
    assert [bool(stack.blocks) for stack in explanation.models[0].stacks] == [False, True, True, True, True]
    assert "left alone: costs" in str(explanation)
    assert [row["worthwhile"] for row in explanation.to_dict()["timings"]] == [False, True]


def test_blocks_that_were_skipped_stay_skipped(unet: nn.Module) -> None:
    mid = "mid_block.attentions.0.transformer_blocks.0"
    config = tm.ToMA(ratio=0.5, parts=("mlp",), tile=(8, 16), skip_blocks=(mid,))
    found = worthwhile(unet, config, SIZE, clock=Work())
    assert set(found.config.skip_blocks) == {
        "down_blocks.0.attentions.0.transformer_blocks.*",
        "mid_block.attentions.0.transformer_blocks.*",
    }


@pytest.mark.parametrize("scope", ["block", "stack"])
def test_whole_blocks_are_timed_whole(unet: nn.Module, scope: str) -> None:
    found = worthwhile(unet, tm.ToMA(ratio=0.5, scope=scope), SIZE, clock=Work())
    assert [row.part for row in found.timings] == ["all", "all"]


def test_where_nothing_pays_a_sentence_says_so(unet: nn.Module) -> None:
    with pytest.raises(tm.TokenMergeError, match="merging saves no time here"):
        worthwhile(unet, tm.ToMA(ratio=0.5, region="tile+global", parts=("cross", "mlp")), SIZE, clock=Work())


def test_the_model_comes_out_as_it_went_in(unet: nn.Module) -> None:
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in unet.modules()]
    worthwhile(unet, tm.ToMA(ratio=0.5), SIZE, clock=Work())
    assert [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in unet.modules()] == hooks


def test_what_cannot_be_timed_is_refused(unet: nn.Module) -> None:
    with pytest.raises(tm.TokenMergeError, match="one ratio"):
        worthwhile(unet, tm.ToMA(ratio=(0.2, 0.6)), SIZE)
    with pytest.raises(tm.TokenMergeError, match=r"size is 512: it takes \(height, width\)"):
        worthwhile(unet, tm.ToMA(), 512)  # type: ignore[arg-type]
    with pytest.raises(tm.TokenMergeError, match="batch is 0"):
        worthwhile(unet, tm.ToMA(), SIZE, batch=0)
    with pytest.raises(tm.TokenMergeError, match="the name of a preset"):
        worthwhile(unet, None, SIZE)  # type: ignore[arg-type]
    with pytest.raises(tm.TokenMergeError, match="meta device"):
        worthwhile(unet.to("meta"), tm.ToMA(ratio=0.5), SIZE)


def test_full_steps_are_kept_and_cost_their_merged_run(unet: nn.Module) -> None:
    """Of three steps one is full and also runs merged, which the other two have to make up for."""
    plain = worthwhile(unet, tm.ToMA(ratio=0.5), SIZE, clock=Work())
    config = tm.ToMA(ratio=0.5, scope="site", correction=tm.FullSteps(every=3, within=None))
    found = worthwhile(unet, config, SIZE, clock=Work())
    assert found.config == config
    for row, alone in zip(found.timings, plain.timings, strict=True):
        if row.part == "all":
            assert alone.merged < row.merged < 1.5 * alone.merged
        else:
            assert row == alone


def test_a_scope_left_open_is_timed_as_it_will_run_and_stays_open(unet: nn.Module) -> None:
    config = tm.ToMA(ratio=0.5, correction=tm.FullSteps())
    found = worthwhile(unet, config, SIZE, clock=Work())
    stack = worthwhile(unet, config.with_scope("stack"), SIZE, clock=Work())
    assert found.timings == stack.timings
    assert found.config == config
