"""check_family says nothing of families that are right, and what is wrong with others."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "models"))
from foreign_models import ConsistencyUNet, FlowDiT, SwallowingAttention
from test_foreign import ConsistencyFamily, FlowFamily, seeded
from tiny_models import made, tiny

from tokenmerge.models import family_of
from tokenmerge.models.base import Part, Rotary, Stack, cos_sin_at, rows_at
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
