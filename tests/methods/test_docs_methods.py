"""The worked examples of a selector and of a method in docs/extending.md run, stay short, and really merge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import TINY_MODELS, made

import tokenmerge as tm
from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
MODELS = [model for model in TINY_MODELS if model.name in ("sd15", "flux", "wan")]


def example(heading: str) -> str:
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return str(code)


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    known = dict(MergeConfig._methods)
    # Under a module's name, for dataclasses look their annotations up there.
    found: dict[str, Any] = {"__name__": __name__}
    exec(example("A selector of your own") + example("A method of your own"), found)
    yield found
    MergeConfig._methods.clear()
    MergeConfig._methods.update(known)


@pytest.mark.parametrize("heading", ["A selector of your own", "A method of your own"])
def test_it_is_short(heading: str) -> None:
    assert len(example(heading).strip().splitlines()) <= 40


@pytest.mark.parametrize("tiny", MODELS, ids=str)
def test_the_selector_chooses(names: dict[str, Any], tiny: Any) -> None:
    model, grid = made(tiny.build), tiny.grid(7, 8)
    options = {"ratio": 0.75, "min_tokens": 0, "skip_blocks": 0, "tile": (4, 4)}
    outputs = []
    for selector in ("facility_location", names["select_outliers"]):
        with tm.merged(model, tm.ToMA(selector=selector, **options)):
            outputs.append(tiny.call(model, [0], grid))
    assert outputs[0].shape == outputs[1].shape
    assert not torch.allclose(*outputs, atol=1e-4)


@pytest.mark.parametrize("tiny", MODELS, ids=str)
@pytest.mark.parametrize("scope", ["site", "stack"])
def test_the_method_merges_three_quarters(names: dict[str, Any], tiny: Any, scope: str) -> None:
    model, grid = made(tiny.build), tiny.grid(8, 8)
    before = tiny.call(model, [0, 1], grid)
    with tm.merged(model, names["CellMean"](scope=scope, min_tokens=0, skip_blocks=0)) as handle:
        merged = tiny.call(model, [0, 1], grid)
        stacks = handle.explain().models[0].stacks
    assert merged.shape == before.shape
    assert not torch.allclose(merged, before, atol=1e-4)
    assert {stack.tokens // stack.kept for stack in stacks if stack.blocks} == {4}
    assert torch.equal(tiny.call(model, [0, 1], grid), before)


def test_the_method_is_known_by_name_and_checks_itself(names: dict[str, Any]) -> None:
    config = names["CellMean"](scope="block")
    assert MergeConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"ratio 0\.5 is not one that CellMean takes: use 0\.75"):
        names["CellMean"](ratio=0.5)
