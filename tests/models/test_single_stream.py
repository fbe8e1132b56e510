"""Text and image in one sequence: the image may stand anywhere in it, at another place in each sample of a batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import SCOPES, TILES, close, key_lengths, since
from identity import Identity
from tiny_models import made, tiny
from tiny_models.image_queries import qwen_image21, qwen_image21_inputs
from tiny_models.single_stream import lumina2, lumina2_inputs, text_mask, z_image, z_image_inputs

import tokenmerge as tm
from tokenmerge.engine.placement import Placement
from tokenmerge.errors import MergeRuntimeError

IMAGE = (8, 8)
every_scope = pytest.mark.parametrize("scope", SCOPES)


@since("0.36", "Z-Image")
@every_scope
@pytest.mark.parametrize("grid", [(8, 8), (7, 9)], ids=["no-padding", "padded-image"])
def test_texts_of_different_lengths_in_a_batch(scope: Any, grid: tuple[int, int]) -> None:
    """Z-Image pads the shorter text behind the image, and hides the padding by a mask."""
    model, what = made(z_image), tiny("z-image")
    inputs = z_image_inputs([1, 2], grid)
    inputs["cap_feats"] = [inputs["cap_feats"][0], z_image_inputs([2], grid, texts=40)["cap_feats"][0]]
    before = what.run(model, inputs)
    alone = {**z_image_inputs([1], grid), "cap_feats": inputs["cap_feats"][:1]}
    close(what.run(model, alone)[0], before[0])
    with tm.merged(model, Identity(scope=scope, skip_blocks=0)):
        close(what.run(model, inputs), before)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)), key_lengths() as keys:
        merged = what.run(model, inputs)
    assert max(keys) < 64 + 64  # both image and text are padded to 64
    # What a sample becomes does not depend on how much padding its neighbour asks for.
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)):
        close(what.run(model, alone)[0], merged[0])


@every_scope
def test_an_image_begins_where_its_own_text_ends(scope: Any) -> None:
    model, what = made(lumina2), tiny("lumina2")
    inputs = lumina2_inputs([1, 2, 3], IMAGE)
    inputs["encoder_attention_mask"] = text_mask((2, 5, 3), 5)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)), key_lengths() as keys:
        together = what.run(model, inputs)
    assert max(keys) == 32 + 5
    for sample in range(3):
        one = {name: value[sample : sample + 1] for name, value in inputs.items()}
        with tm.merged(model, dataclasses.replace(TILES, scope=scope)):
            close(what.run(model, one)[0], together[sample])


@since("0.36", "Z-Image")
def test_several_images_a_sample_are_refused() -> None:
    model = made(z_image)
    tm.apply(model, TILES)
    inputs = z_image_inputs([1], IMAGE)
    with pytest.raises(MergeRuntimeError, match="omni mode"):
        model(**{**inputs, "x": [inputs["x"]]})


@since("0.36", "Z-Image")
def test_images_of_two_sizes_are_refused() -> None:
    model = made(z_image)
    tm.apply(model, TILES)
    inputs = z_image_inputs([1, 2], IMAGE)
    inputs["x"][1] = z_image_inputs([2], (8, 12))["x"][0]
    with pytest.raises(MergeRuntimeError, match="one size"):
        model(**inputs)


@pytest.mark.parametrize("starts", [(0,), (2,), (3, 0)])
def test_a_placement_joins_what_it_splits(starts: tuple[int, ...]) -> None:
    sequence = torch.randn(2, 9, 3)
    placement = Placement(starts, 6)
    others, grid = placement.split(sequence)
    for sample in range(2):
        start = starts[sample % len(starts)]
        assert torch.equal(grid[sample], sequence[sample, start : start + 6])
    assert torch.equal(placement.joined(others, grid), sequence)
    kept = torch.tensor([[0, 4], [5, 1]])
    indices = placement.indices(kept, 9)
    assert torch.equal(sequence[torch.arange(2)[:, None], indices[:, 3:]], grid[torch.arange(2)[:, None], kept])


@since("0.42", "Qwen-Image 2.1")
@every_scope
@pytest.mark.parametrize("reference", [(), (4, 6)], ids=["alone", "edit"])
def test_keys_from_a_cache_give_what_all_tokens_give(scope: Any, reference: Any) -> None:
    """Qwen-Image 2.1 computes what stands before the image once, and takes its keys from a cache at later steps."""
    from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

    model, what = made(qwen_image21), tiny("qwen-image-2.1")
    inputs = qwen_image21_inputs([1, 2], IMAGE, reference)
    mask = torch.ones(2, inputs["encoder_hidden_states"].shape[1])
    mask[1, 0] = 0  # the second text is shorter
    inputs["encoder_hidden_states_mask"] = mask

    def outputs(config: Any) -> list[torch.Tensor]:
        cache = QwenImage21KVCache(num_layers=2)
        with tm.merged(model, config):
            full = what.run(model, inputs)[:, -64:]
            what.run(model, {**inputs, "kv_cache": cache, "kv_cache_mode": "extract"})
            cached = what.run(model, {**inputs, "kv_cache": cache, "kv_cache_mode": "cached"})
        return [full, cached]

    for config in (Identity(scope=scope, skip_blocks=0), dataclasses.replace(TILES, scope=scope)):
        full, cached = outputs(config)
        close(cached, full)
    unmerged = what.run(model, inputs)[:, -64:]
    assert (full - unmerged).abs().max() > 1e-3
    close(outputs(Identity(scope=scope, skip_blocks=0))[0], unmerged)
