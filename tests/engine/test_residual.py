"""Whether blocks add what they make to their input is measured, and merging follows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from tiny_models import TINY_MODELS, TinyModel, made

import tokenmerge as tm
from tokenmerge.engine.residual import HALF, _places, passed_on
from tokenmerge.models import FAMILIES, family_of
from tokenmerge.models.base import Family, Part, Stack, blocks_of, patch_grid
from tokenmerge.runtime.multiply_adds import executed_in
from tokenmerge.testing import check_family


class Layer(nn.Module):
    """What a block makes of tokens; `adds` puts the residual into the block, `adds_inside` into its part."""

    def __init__(self, adds: bool, adds_inside: bool) -> None:
        super().__init__()
        self.mlp = Inside(adds_inside)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x) if self.adds else self.mlp(x)


class Inside(nn.Module):
    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.two(self.one(self.norm(x)).relu())
        return x + made if self.adds else made


class Foreign(nn.Module):
    def __init__(self, adds: bool = False, adds_inside: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(adds, adds_inside) for _ in range(2))

    def forward(self, image: Tensor, t: Tensor) -> Tensor:
        tokens = image.flatten(2).transpose(1, 2) + t[:, None, None]
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens.transpose(1, 2).view(image.shape)


class ForeignFamily(Family):
    name = class_name = "Foreign"
    latent, timestep, conditions = "image", "t", ()
    residual: bool | None = None

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "layers", (Part(("mlp",), "mlp"),), residual=self.residual)
        return [Stack("layers", "layers", model, lambda args, kwargs: patch_grid(1, args, kwargs, "image"), blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        return {"image": torch.randn(batch, 16, *size), "t": torch.full((batch,), 0.5)}


@pytest.fixture
def foreign() -> Any:
    known = list(FAMILIES)
    tm.register_family(ForeignFamily())
    yield lambda **options: _seeded(**options)
    FAMILIES[:] = known


def _seeded(**options: bool) -> nn.Module:
    torch.manual_seed(0)
    return Foreign(**options).eval().requires_grad_(False)


def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"image": torch.randn(1, 16, 8, 8, generator=generator), "t": torch.full((1,), 0.5)}


def tiles_then(image: Tensor) -> Tensor:
    """The mean of each 2 x 2 tile, at each of its tokens."""
    return nn.functional.avg_pool2d(image, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)


def tile_means(scope: Any) -> tm.MergeConfig:
    return tm.TileMean(tile=2, scope=scope, correction=None, min_tokens=0, skip_blocks=0)


@pytest.mark.parametrize("scope", ["block", "stack"])
def test_blocks_without_a_residual_return_what_they_made_of_merged_tokens(foreign: Any, scope: Any) -> None:
    model, given = foreign(), inputs()
    with tm.merged(model, tile_means(scope)):
        assert abs(_detail(model(**given), given["image"])) < 0.1


@pytest.mark.parametrize("scope", ["block", "stack"])
def test_blocks_with_one_keep_the_detail_of_their_input(foreign: Any, scope: Any) -> None:
    model, given = foreign(adds=True), inputs()
    with tm.merged(model, tile_means(scope)):
        assert _detail(model(**given), given["image"]) > 0.8


def test_a_part_with_a_residual_inside_keeps_it_too(foreign: Any) -> None:
    model, given = foreign(adds_inside=True), inputs()
    with tm.merged(model, tile_means("site")):
        assert _detail(model(**given), given["image"]) > 0.8


def _detail(output: Tensor, image: Tensor) -> float:
    """How much of what averaging 2 x 2 tiles takes out of the input is in the output: a regression."""
    fine = image - tiles_then(image)
    return float((output * fine).sum() / fine.square().sum())


def test_measuring_leaves_random_numbers_alone(foreign: Any) -> None:
    model = foreign()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with tm.merged(model, tile_means("block")):
        model(**inputs())
    assert torch.equal(torch.rand(3), expected)


def test_a_model_is_measured_once(foreign: Any) -> None:
    model = foreign()
    counts = []
    for scope in ("block", "block", "stack"):
        with tm.merged(model, tile_means(scope)), executed_in([model]) as counted:
            model(**inputs())
        counts.append(counted.total)
    assert counts[0] > counts[1] == counts[2]


def test_check_family_says_if_a_residual_is_declared_wrongly() -> None:
    family = ForeignFamily()
    assert check_family(_seeded(), family, (8, 8)) == []
    family.residual = True
    (problem,) = check_family(_seeded(), family, (8, 8))
    assert "Layer has residual=True, but passes on" in problem
    family.residual = False
    assert check_family(_seeded(), family, (8, 8)) == []


@pytest.mark.parametrize("tiny", TINY_MODELS, ids=str)
def test_our_families_need_no_measuring(tiny: TinyModel) -> None:
    """Their blocks add what they make to their input, and their parts do not."""
    model = made(tiny.build)
    stacks = family_of(model).stacks(model)
    places = {place for place, _ in _places(stacks)}
    shares = passed_on(model, stacks, places, (), {**tiny.inputs([1], tiny.grid(8, 8)), "return_dict": False})
    assert shares
    assert {place: share > HALF for place, share in shares.items()} == {place: place[1] is None for place in shares}
