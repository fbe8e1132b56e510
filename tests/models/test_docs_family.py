"""The worked example of a new family in docs/extending.md runs, stays short, and keeps the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import SCOPES, TILES, close, key_lengths
from identity import Identity

import tokenmerge as tm
from tokenmerge.models import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
HEADING = "## A model that tokenmerge does not know\n"


def examples() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, Any]]:
    """The names that the page's code defines."""
    known = list(FAMILIES)
    names: dict[str, Any] = {}
    exec("\n".join(examples()), names)
    yield names
    FAMILIES[:] = known


def test_it_is_short() -> None:
    assert all(len(code.strip().splitlines()) <= 40 for code in examples())


def test_the_recipe_is_a_page() -> None:
    recipe = PAGE.read_text(encoding="utf-8").split("### The recipe\n")[1].split("\n### ")[0]
    assert len(recipe.strip().splitlines()) <= 66  # of A4, typewritten


def test_a_family_takes_twenty_lines() -> None:
    code = next(code for code in examples() if "DenoiserFamily" in code)
    lines = [line for line in code.split("assert check_family")[0].splitlines() if line.strip()]
    assert len(lines) <= 20


def test_it_measures_quality(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples()[-1], example)
    printed = capsys.readouterr().out
    assert re.search(r"\| fewer steps, 5 of 10 .*\| tokenmerge, quality .*\| ToMA ", printed, flags=re.DOTALL)
    assert "10 calls, 5 of them at full steps, 5 of them skipped" in printed


def test_it_explains_what_it_merged(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert example["image"].shape == (1, 3, 64, 96)
    with tm.merged(example["model"], tm.TileMean()) as handle:
        report = handle.explain(size=(64, 96))
    assert report.models[0].stacks[0].grid == (16, 24)
    assert report.models[0].stacks[0].kept == 16 * 24 // 16


@pytest.mark.parametrize("scope", SCOPES)
def test_it_keeps_the_contract(example: dict[str, Any], scope: Any) -> None:
    model = example["Denoiser"]().eval()
    image = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(image, 0.5)
        with tm.merged(model, Identity(scope=scope)):
            close(model(image, 0.5), before)
        with tm.merged(model, TILES.build({**vars(TILES), "scope": scope})):
            model(image, 0.5)  # measures whether blocks add to their input
            with key_lengths() as keys:
                assert model(image, 0.4).shape == before.shape
        assert torch.equal(model(image, 0.5), before)
    assert set(keys) == {8 * 12 // 2}
