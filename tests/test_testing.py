"""check_family says nothing of families that are right, and what is wrong with others."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "models"))
from foreign_models import ConsistencyUNet, FlowDiT, SwallowingAttention
from test_foreign import ConsistencyFamily, FlowFamily, seeded
from tiny_models import made, tiny

from tokenmerge.models import family_of
from tokenmerge.models.base import Family, Part, Rotary, Stack, blocks_of, cos_sin_at, rows_at
from tokenmerge.testing import check_family


def test_families_of_strangers_that_are_right_have_no_problems() -> None:
    assert check_family(seeded(FlowDiT), FlowFamily(), (128, 128)) == []
    assert check_family(seeded(ConsistencyUNet), ConsistencyFamily(), (16, 16)) == []


@pytest.mark.parametrize("name", ["sd15", "flux", "wan", "ernie-image"])
def test_families_of_ours_have_none_either(name: str) -> None:
    model = made(tiny(name).build)
    assert check_family(model, family_of(model), (128, 128), batch=1) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"class_name": "AnotherDiT"}, "does not recognise the model"),
        ({"rotary": None}, "put into another order: name the blocks' position embeddings as a Rotary"),
        ({"rotary": Rotary(("cosine", "sin"), cos_sin_at)}, "takes no argument 'cosine'"),
        ({"rotary": Rotary(("cos", "sin"), cos_sin_at, per_sample=True)}, "has no batch axis.*per_sample"),
        ({"parts": (Part(("self",), "attn", mask="4d"),)}, "takes no argument 'attention_mask'.*x, cos, sin, bias"),
        ({"conditions": ("text",)}, r"none of conditions, \('text',\), is an argument.*of y;"),
        ({"argument": "emb"}, r"layers.0 is given \(2, 16\) where tokens should be"),
        ({"patch": 1}, r"is given 64 tokens, and grid returns \(16, 16\), which has 256"),
        ({"patch": 4}, r"is given 64 tokens, and grid returns \(4, 4\), which has 16: mend the patch size"),
        ({"latent": "image"}, "the family's latent is 'image', and the call has no such argument: it has noisy, t, y"),
        ({"rotary": Rotary(("cos", "sin"), rows_at)}, "rows_at is given a tuple.*use cos_sin_at"),
        ({"rotary": Rotary("cos", cos_sin_at)}, "cos_sin_at is given one tensor.*use rows_at"),
        ({"parts": (Part(("self",), "attn"),)}, "layers.0.attn calls scaled_dot_product_attention.*mask='inside'"),
        ({"blocks": "blocks"}, "stacks fails for this model: FlowDiT has no module 'blocks': it has patchify.*layers"),
        ({"grid_argument": "x"}, "patch_grid's name is 'x', and the call has no such argument: it has noisy, t, y"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_once(wrong: dict[str, Any], said: str) -> None:
    family = FlowFamily()
    for name, value in wrong.items():
        setattr(family, name, value)
    problems = check_family(seeded(FlowDiT), family, (128, 128))
    assert len([problem for problem in problems if re.search(said, problem)]) == 1, problems


def test_levels_of_a_unet_without_downsample_are_said() -> None:
    class SameLevel(ConsistencyFamily):
        def stacks(self, model: nn.Module) -> list[Stack]:
            return [dataclasses.replace(stack, downsample=1) for stack in super().stacks(model)]

    (problem,) = check_family(seeded(ConsistencyUNet), SameLevel(), (16, 16))
    assert re.search("'top' and 'bottom' have grids of .16, 16. and .8, 8. tokens and the same downsample", problem)


def test_blocks_with_other_modules_between_them_need_stacks_of_their_own() -> None:
    class OneStack(ConsistencyFamily):
        def stacks(self, model: nn.Module) -> list[Stack]:
            top, after = super().stacks(model)
            return [dataclasses.replace(top, blocks=(*top.blocks, *after.blocks))]

    class Level(ConsistencyUNet):
        def forward(self, x: Any, sigma: float) -> Any:
            top = self.inside(self.top(self.inside(x) + sigma)[:, :3])
            return self.outside(self.bottom(top))

    Level.__name__ = "ConsistencyUNet"
    (problem,) = check_family(seeded(Level), OneStack(), (16, 16))
    assert "give blocks that other modules stand between, such as convolutions, a Stack each" in problem


class SequenceDenoiser(nn.Module):
    """A transformer of a sequence, made of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(1, 16), nn.Linear(16, 1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Any, t: Any) -> Any:
        return self.outside(self.encoder(self.inside(x[..., None]) + t)).squeeze(-1)


class SequenceFamily(Family):
    name = class_name = "SequenceDenoiser"
    latent, timestep, conditions = "x", "t", ()
    mask: Any = "none"
    row: tuple[int, ...] = (1, 64)

    def stacks(self, model: nn.Module) -> list[Stack]:
        parts = Part(("self",), "self_attn", mask=self.mask), Part(("mlp",), "linear1", "linear2")
        blocks = blocks_of(model, "encoder.layers", parts)
        return [Stack("layers", "layers", model, lambda args, kwargs: self.row, blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        return {"x": torch.randn(batch, 64), "t": 0.5}


def test_a_sequence_is_one_row_of_tokens() -> None:
    model, family = seeded(SequenceDenoiser), SequenceFamily()
    assert check_family(model, family) == []
    family.row = (64,)
    (problem,) = check_family(model, family)
    assert "a sequence is one row of tokens, (1, 64)" in problem


def test_attention_that_cannot_be_reached_is_said() -> None:
    family = SequenceFamily()
    family.mask = "inside"
    (problem,) = check_family(seeded(SequenceDenoiser), family)
    assert re.search("self_attn is a MultiheadAttention, .* give mask='none'", problem)


def test_an_attention_that_drops_its_mask_is_noticed() -> None:
    class Dropping(SwallowingAttention):
        def forward(self, x: Any, cos: Any, sin: Any, bias: Any = None) -> Any:  # type: ignore[override]
            return super().forward(x, cos, sin)

    (problem,) = check_family(seeded(lambda: FlowDiT(Dropping)), FlowFamily(), (128, 128))
    assert "weights of merged keys have no effect" in problem


def test_example_inputs_that_are_no_call_are_said() -> None:
    family = FlowFamily()
    family.example_inputs = lambda model, size, batch: {"noise": 1}  # type: ignore[method-assign]
    (problem,) = check_family(seeded(FlowDiT), family)
    assert "cannot be called with what example_inputs returns: TypeError" in problem


def test_attention_that_must_not_be_weighted_says_why() -> None:
    family = FlowFamily()
    family.parts = (Part(("self",), "attn"),)
    family.cannot_weigh = "its keys stand for equally many tokens"
    assert check_family(seeded(FlowDiT), family, (128, 128)) == []


def test_no_blocks_are_said() -> None:
    family = FlowFamily()
    family.stacks = lambda model: [Stack("none", "none", model, lambda args, kwargs: (1, 1), ())]  # type: ignore[method-assign]
    assert check_family(nn.Linear(1, 1), family)[-1].startswith("stacks returns no blocks")
