"""From a config and the facts of a call to a Program: no model is built here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tokenmerge as tm
from tokenmerge.engine.compatibility import suited
from tokenmerge.engine.program import Facts, Program, StackCall, StackDescription
from tokenmerge.engine.resolve import resolve
from tokenmerge.engine.schedule import Kind
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Block, Part, Rotary, Stack, cos_sin_at

NOTHING = nn.Identity()
UNET_PARTS = (Part(("self",), "attn1", own_keys=True, mask="3d"), Part(("cross",), "attn2"), Part(("mlp",), "ff"))
JOINT_PARTS = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff"))
HERE = torch.device("cpu")


def described(
    parts: tuple[Part, ...] = UNET_PARTS, blocks: int = 3, skipped: tuple[int, ...] = (), **options: Any
) -> StackDescription:
    """A stack of blocks called 0, 1, 2, ..."""
    rotary = options.pop("rotary", None)
    made = tuple(Block(str(number), NOTHING, parts, rotary=rotary) for number in range(blocks))
    stack = Stack("stack", "level", NOTHING, lambda args, kwargs: (8, 8), made, **options)
    merging = tuple(block for number, block in enumerate(made) if number not in skipped)
    return StackDescription(stack, merging, {str(number): number for number in range(blocks)}, blocks, coarsest=4)


def program(
    stack: StackDescription, config: tm.MergeConfig, kind: Kind = Kind.MERGED, call: Any = None, **facts: Any
) -> Program:
    return resolve(stack, Facts(suited(config, [stack.stack]), **facts), call or StackCall((8, 8), 0, HERE), kind)


def toma(scope: Any = "site", ratio: float = 0.5, **options: Any) -> tm.ToMA:
    return tm.ToMA(**{"ratio": ratio, "scope": scope, **options})


PLAIN: dict[str, Any] = {"min_tokens": 16}


def where(found: Program) -> list[tuple[str, str, str, str]]:
    return [(row.act, row.where, row.first.name, row.last.name) for row in found.spans]


def test_parts_are_spans_and_blocks_prepare_their_plan() -> None:
    found = program(described(blocks=1), toma("site", **PLAIN))
    assert where(found) == [("prepare", "block", "0", "0"), *[("merge", "part", "0", "0")] * 3]
    assert [row.part.module for row in found.spans[1:] if row.part] == ["attn1", "attn2", "ff"]
    assert not any(row.residual for row in found.spans)


def test_each_block_is_a_span() -> None:
    found = program(described(), toma("block", **PLAIN))
    assert where(found) == [("merge", "block", name, name) for name in "012"]
    assert all(row.residual for row in found.spans)


def test_a_run_of_blocks_is_one_span_and_a_skipped_block_parts_it() -> None:
    assert where(program(described(), toma("stack", **PLAIN))) == [("merge", "block", "0", "2")]
    found = program(described(blocks=4, skipped=(1,)), toma("stack", **PLAIN))
    assert where(found) == [("merge", "block", "0", "0"), ("merge", "block", "2", "3")]


def test_the_owner_is_a_span_if_all_its_blocks_are() -> None:
    wraps = StackCall((8, 8), 0, HERE, wraps=True)
    found = program(described(norm="norm"), toma("stack", **PLAIN), call=wraps)
    assert where(found) == [("merge", "transformer", "0", "2")]
    assert found.wraps
    skipped = program(described(norm="norm", skipped=(0,)), toma("stack", **PLAIN), call=wraps)
    assert where(skipped) == [("merge", "block", "1", "2")]


def test_what_stands_between_blocks_isolates_them() -> None:
    found = program(described(), toma("stack", **PLAIN), interleaved=True)
    assert where(found) == [("merge", "block", name, name) for name in "012"]
    assert found.notes == ("merged per block: something is added between blocks",)


def test_tokens_are_reordered_once_for_a_run() -> None:
    found = program(described(), toma("block", **PLAIN))
    assert [(row.gather, row.scatter) for row in found.spans] == [(True, False), (False, False), (False, True)]
    kept_in_order = program(described(), toma("site", **PLAIN), fixed_order="something")
    assert not any(row.gather or row.scatter for row in kept_in_order.spans)


def test_a_full_step_does_nothing_and_a_calibrating_one_records() -> None:
    config = tm.TileMean(min_tokens=16)
    assert program(described(), config, Kind.FULL).spans == ()
    assert where(program(described(), config, Kind.CALIBRATE)) == [("record", "block", "0", "2")]
    assert all(row.corrected for row in program(described(), config).spans)


def test_a_subset_of_keys_is_read_at_calibrating_steps_alone() -> None:
    config = tm.TileMean(min_tokens=16)
    keys = frozenset({"0.attn1"})
    (row,) = program(described(), config, Kind.CALIBRATE, subset_keys=keys).attentions
    assert row.subset is not None
    assert len(row.subset) == 4  # one of each 4 x 4 tile
    assert all(row.subset is None for row in program(described(), config, subset_keys=keys).attentions)


@pytest.mark.parametrize(
    ("parts", "ratio", "weighs"),
    [(UNET_PARTS, 0.5, True), (UNET_PARTS, 0.9375, False), (JOINT_PARTS, 0.5, True), (JOINT_PARTS, 0.9375, True)],
)
def test_keys_are_weighted_where_they_differ_or_stand_beside_text(parts: Any, ratio: float, weighs: bool) -> None:
    found = program(described(parts), toma("block", ratio, **PLAIN))
    assert {row.weighs for row in found.attentions} == {weighs}


def test_attention_inside_a_transformer_needs_no_row_if_keys_stand_for_as_many() -> None:
    wraps = StackCall((8, 8), 0, HERE, wraps=True)
    assert program(described(norm="norm"), toma("stack", 0.9375, **PLAIN), call=wraps).attentions == ()
    assert len(program(described(norm="norm"), toma("stack", 0.5, **PLAIN), call=wraps).attentions) == 3


def test_position_embeddings_follow_the_tokens() -> None:
    rotary = Rotary("image_rotary_emb", cos_sin_at)
    stack = described(JOINT_PARTS, rotary=rotary)
    assert len(program(stack, toma("stack", **PLAIN)).rotaries) == 3
    around_parts = program(stack, toma("site", **PLAIN), fixed_order="something")
    assert around_parts.rotaries == ()
    assert all(row.moves_rotary for row in around_parts.attentions)


def test_keys_of_all_tokens_are_left_out_inside_joint_attention() -> None:
    found = program(described(JOINT_PARTS), toma("site", 0.75, keys="all", **PLAIN))
    assert all(row.asks and row.given == 64 for row in found.attentions)
    assert [row.part.module for row in found.spans if row.part] == ["ff"] * 3  # attention unmerges its own answers


def test_sampled_keys_are_read_as_they_are_and_only_at_parts() -> None:
    found = program(described(), toma("site", 0.75, keys="sampled", **PLAIN))
    assert all(row.separate_keys for row in found.spans if row.part and "self" in row.part.kinds)
    inside = program(described(JOINT_PARTS), toma("site", 0.75, keys="sampled", **PLAIN))
    assert all(row.asks and row.reads for row in inside.attentions)


def test_tile_means_stay_in_grid_order() -> None:
    found = program(described(), tm.TileMean(scope="block", **PLAIN))
    assert not any(row.gather or row.scatter or row.context.in_region_order for row in found.spans)


def test_every_reason_for_merging_nothing_is_said() -> None:
    small = program(described(), tm.ToMA(ratio=0.5))
    assert (small.merges, small.reason) == (False, "64 tokens, fewer than min_tokens=256")
    assert resolve(described(), Facts(None), StackCall((8, 8), 0, HERE), Kind.MERGED).reason == "ratio 0 at this step"
    assert program(described(skipped=(0, 1, 2)), toma("site", **PLAIN)).reason == "all blocks skipped"
    coarse = program(described(downsample=2), tm.ToMeSD(min_tokens=16))
    assert "max_downsample=1" in coarse.reason


def test_a_cached_part_and_one_that_looks_tokens_up_are_left_alone() -> None:
    config = toma("site", **PLAIN)
    assert "0.attn1" not in program(described(blocks=1), config, cached=frozenset({"0.attn1"})).parts
    assert program(described(blocks=1), config, positional=("cross",)).parts == ("0.attn1", "0.ff")


def test_whole_blocks_cannot_be_merged_in_a_fixed_order() -> None:
    with pytest.raises(MergeRuntimeError, match="use scope='site'"):
        program(described(), toma("stack", **PLAIN), fixed_order="each token has its own timestep")
