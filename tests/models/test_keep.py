"""A mask of what to keep: how it is read, and that nothing white is merged in any model."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from checks import SCOPES, SMALL, close, in_turn, operators_on, session_on
from PIL import Image
from test_proportional import make_alike
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor
from torch._dynamo.utils import counters

import tokenmerge as tm
from tokenmerge.config.keep import mask_on_grid, read_mask
from tokenmerge.errors import ConfigError, NothingMergedError
from tokenmerge.methods.toma import PseudoInverseToMA
from tokenmerge.ops.regions import regions_of

TILES = tm.ToMA(ratio=0.5, tile=(4, 4), **SMALL)
# White over more than one whole tile of a grid of 8 x 8, and over a part of another.
WHITE = torch.zeros(16, 16)
WHITE[:8, :12] = 1
FAMILIES = [model for model in TINY_MODELS if model.name in ("sd15", "flux", "sd3", "wan", "hunyuan-video")]


def white_tokens(grid: tuple[int, ...]) -> list[int]:
    frames = torch.Size(grid).numel() // (grid[-2] * grid[-1])
    flat = [row * grid[-1] + column for row in range(grid[-2] // 2) for column in range(grid[-1] * 3 // 4)]
    return [frame * grid[-2] * grid[-1] + token for frame in range(frames) for token in flat]


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[False, True]]),
        torch.tensor([[[0, 255]]], dtype=torch.uint8),
        np.array([[0, 255]], dtype=np.uint8),
        np.array([[0, 1]], dtype=np.uint8),
        np.array([[0, 1]]),
        np.array([[0.0, 1.0]]),
        Image.fromarray(np.array([[0, 255]], dtype=np.uint8)),
        Image.fromarray(np.array([[[0, 0, 0], [255, 255, 255]]], dtype=np.uint8)),
    ],
    ids=lambda given: f"{type(given).__name__}",
)
def test_masks_come_as_tensors_arrays_and_images(given: Any) -> None:
    assert torch.equal(read_mask(given), torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mask.png", "an image, an array or a tensor"),
        (torch.ones(4, 4, dtype=torch.complex64), "of type Tensor: give an image"),
        (torch.zeros(4, 4), "black throughout"),
        (torch.full((4, 4), 2.0), "above 1"),
        (torch.full((4, 4), 0.5), "threshold it, such as keep=mask > 0.5"),
        (Image.new("L", (4, 4), 128), "shades of grey"),
        (torch.full((4, 4), float("nan")), "not finite"),
        (torch.ones(3, 4, 4), "height x width"),
        (torch.ones(4), "height x width"),
        (torch.ones(0, 4), "height x width"),
    ],
)
def test_what_is_no_mask_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tm.apply(made(tiny("pixart").build), TILES, keep=given)


def test_a_white_pixel_is_never_lost() -> None:
    mask = torch.zeros(64, 64)
    mask[13, 50] = 1
    assert mask_on_grid(mask, (8, 8)).nonzero().flatten().tolist() == [1 * 8 + 6]
    assert mask_on_grid(torch.tensor([[0.0, 1.0]]), (2, 4)).tolist() == [0, 0, 1, 1] * 2
    assert mask_on_grid(torch.tensor([[0.0, 1.0]]), (2, 1, 2)).tolist() == [0, 1] * 2


@pytest.mark.parametrize("protected", [(), (0, 1, 2, 5), tuple(range(40)), tuple(range(1, 60, 2))])
def test_regions_hold_every_other_token_once(protected: tuple[int, ...]) -> None:
    regions = regions_of((6, 10), (4, 4), protected)
    inside = regions.count * regions.size
    assert regions.order[inside : inside + len(protected)].tolist() == list(protected)
    valid = torch.ones(inside, dtype=torch.bool) if regions.valid is None else regions.valid.flatten()
    placed = [*regions.order[:inside][valid].tolist(), *regions.order[inside:].tolist()]
    assert sorted(placed) == list(range(60))
    if protected:
        assert regions.valid is None
        assert len(placed) - inside - len(protected) < regions.size
    tokens = torch.randn(2, 60, 3)
    assert torch.equal(regions.scatter(regions.gather(tokens)), tokens)


MASKED = [
    dataclasses.replace(config, scope=scope)
    for config in (
        TILES,
        dataclasses.replace(TILES, region="tile+global"),
        PseudoInverseToMA(ratio=0.5, tile=(4, 4), selector="random", **SMALL),
    )
    for scope in SCOPES
]


@in_turn("what, config", MASKED, FAMILIES)
def test_white_tokens_are_not_merged(what: TinyModel, config: tm.ToMA) -> None:
    model, grid = made(what.build), what.grid(8, 8)
    tm.apply(model, config, keep=WHITE)
    what.call(model, [1], grid)
    stack = session_on(model).stacks[0]
    layout = stack.program.layout
    assert layout is not None
    operator, white = operators_on(model).queries, white_tokens(grid)
    assert operator is not None
    count = torch.Size(grid).numel()
    tokens = torch.randn(1, count, 3)
    # Operators take tokens in the order in which the block holds them.
    reordered = stack.program.spans[0].context.in_region_order
    places = white if not reordered else [int(layout.regions.inverse[token]) for token in white]
    merged = operator.merge(tokens)
    spared = len(white) + (count - len(white)) % 16  # those left over when the rest is cut into tiles are kept too
    assert merged.shape[1] == layout.kept == spared + (count - spared) // 2
    inside, kept_whole = layout.kept - spared, slice(layout.kept - spared, layout.kept - spared + len(white))
    close(operator.unmerge(merged)[:, places], tokens[:, places])
    others = torch.ones(count, dtype=torch.bool)
    others[places] = False
    disturbed = tokens + others.view(1, -1, 1) * torch.randn(1, count, 3)
    assert torch.equal(operator.merge(disturbed)[:, kept_whole], tokens[:, places])  # nothing comes into them
    assert torch.equal(operator.merge(tokens + 5.0 * ~others.view(1, -1, 1))[:, :inside], merged[:, :inside])
    assert operator.mass is not None
    assert torch.equal(operator.mass[:, kept_whole], torch.ones(1, len(white)))
    assert operator.mass.sum() == pytest.approx(count)
    assert operator.destinations is not None
    assert operator.destinations[0, kept_whole].tolist() == places


@in_turn("what, scope", SCOPES, [model for model in TINY_MODELS if model.makes_tokens])
def test_with_a_mask_too_merging_what_is_alike_changes_nothing(what: TinyModel, scope: Any) -> None:
    model, grid = made(what.build), what.grid(8, 8)
    make_alike(model, what, grid)
    before = what.call(model, [1], grid)
    quarter = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    with tm.merged(model, tm.ToMA(ratio=0.75, tile=(2, 2), scope=scope, **SMALL), keep=quarter) as handle:
        close(what.call(model, [1], grid), before)
        kept = handle.explain().models[0].stacks[0].kept
    white = torch.Size(grid).numel() // 4
    assert kept == white + 3 * white // 4


def test_the_mask_matters_to_the_image_and_more_so_to_what_is_white() -> None:
    unet = tiny("sd15")
    model, grid = made(unet.build), (16, 16)
    before = unet.call(model, [1], grid)
    mask = torch.zeros(16, 16)
    mask[:, :8] = 1
    config = tm.ToMA(ratio=0.9, tile=(4, 4), parts=("mlp",), **SMALL)
    errors = []
    for keep in (None, mask):
        with tm.merged(model, config, keep=keep):
            errors.append((unet.call(model, [1], grid) - before).abs()[..., :6].mean())
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("method", [tm.ToMeSD, tm.ToFu, tm.ToDo, tm.SampledKeys])
def test_other_methods_refuse_a_mask(method: Any) -> None:
    with pytest.raises(ConfigError, match=f"{method.__name__} cannot keep a part of the image.*use TileMean or ToMA"):
        tm.apply(made(tiny("sd15").build), method(**SMALL), keep=WHITE)


def test_a_mask_that_is_white_everywhere_leaves_nothing_to_merge() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    with tm.merged(model, TILES, keep=torch.ones(4, 4)), pytest.raises(NothingMergedError, match="white everywhere"):
        pixart.call(model, [1], (8, 8))


def test_removing_forgets_the_mask() -> None:
    pixart = tiny("pixart")
    model = made(pixart.build)
    before = pixart.call(model, [1], (8, 8))
    with tm.merged(model, TILES, keep=WHITE):
        pixart.call(model, [1], (8, 8))
    assert torch.equal(pixart.call(model, [1], (8, 8)), before)


def test_compiled_blocks_keep_too() -> None:
    flux, timesteps = tiny("flux"), (0.9, 0.8, 0.7)
    grid = flux.grid(8, 8)
    outputs: list[list[Tensor]] = []
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        model = made(flux.build)
        tm.apply(model, dataclasses.replace(TILES, select_every=2), keep=WHITE)
        if compiled:
            model.compile_repeated_blocks(fullgraph=True, backend="aot_eager")
        outputs.append([flux.call(model, [1], grid, timestep) for timestep in timesteps])
    assert not counters["graph_break"]
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    torch._dynamo.reset()
