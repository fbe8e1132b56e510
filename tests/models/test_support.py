"""The support matrix says what the registry says."""

from __future__ import annotations

import pytest
from checks import since

from tokenmerge.models import FAMILIES
from tokenmerge.report import support

pytestmark = since("0.36", "the last of the families, Flux.2")


@pytest.fixture(scope="module")
def matrix() -> str:
    return support.support_matrix()


def row(matrix: str, family: str) -> list[str]:
    line = next(line for line in matrix.splitlines() if line.startswith(f"| {family}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_family_and_method_is_there(matrix: str) -> None:
    headers = row(matrix, "family")
    assert headers[4:] == ["ToMA", "ToMeSD", "ToFu", "ToDo", "LowerBound"]
    for family in FAMILIES:
        assert row(matrix, family.name)[1] == f"`{family.class_name}`"


def test_cells_hold_scopes_or_a_reason(matrix: str) -> None:
    columns = dict(zip(row(matrix, "family"), row(matrix, "Stable Diffusion UNet"), strict=True))
    assert columns["ToMA"] == "site, block, stack"
    assert columns["ToDo"] == "site"
    assert columns["weighs keys"] == "yes"
    flux = dict(zip(row(matrix, "family"), row(matrix, "Flux.1"), strict=True))
    assert flux["ToDo"] == "site"
    sana = dict(zip(row(matrix, "family"), row(matrix, "Sana"), strict=True))
    assert sana["ToDo"].startswith("no [")
    number = sana["ToDo"].removeprefix("no [").removesuffix("]")
    assert f"\n{number}. It has no self-attention whose keys" in matrix
    assert sana["parts"] == "cross"
    assert sana["ToMA"].startswith("site [")
