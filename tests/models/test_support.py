"""The support matrix says what the registry says."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
from checks import since

from tokenmerge.models import FAMILIES
from tokenmerge.models.published import ARCHITECTURES, build_from_config
from tokenmerge.models.unsupported import UNSUPPORTED
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
    methods = ["TileMean", "SampledKeys", "ToMA", "ToMeSD", "ToFu", "ToDo", "SkipSteps", "LowerBound"]
    assert headers[4:] == methods
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
    assert f"\n{number}. It has no self-attention that could read" in matrix
    assert sana["parts"] == "cross"
    assert sana["ToMA"].startswith("site [")


@since("0.42", "the newest transformers")
def test_every_transformer_of_diffusers_is_supported_or_explained() -> None:
    from diffusers import ModelMixin
    from diffusers.models import transformers

    found = set()
    for info in pkgutil.iter_modules(transformers.__path__):
        module = importlib.import_module(f"{transformers.__name__}.{info.name}")
        classes = inspect.getmembers(module, inspect.isclass)
        found |= {name for name, kind in classes if issubclass(kind, ModelMixin) and kind.__module__ == module.__name__}
    supported = {family.class_name for family in FAMILIES}
    assert len(found) > 70
    assert found - supported - UNSUPPORTED.keys() == set()
    assert supported & UNSUPPORTED.keys() == set()
    assert UNSUPPORTED.keys() <= found


def test_every_family_can_be_built_by_name() -> None:
    built = {known.class_name for known in ARCHITECTURES.values()}
    assert {family.class_name for family in FAMILIES} - built == set()


def test_building_a_model_passes_on_no_remark_of_diffusers(recwarn: pytest.WarningsRecorder) -> None:
    # The class of Chroma uses a name that diffusers has deprecated.
    build_from_config("ChromaTransformer2DModel", {})
    assert [str(warning.message) for warning in recwarn] == []


def test_files_hold_the_texts_whose_marks_they_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- unsupported:begin -->\n<!-- unsupported:end -->\n")
    assert support.main([str(page), "--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert support.main([str(page)]) == 0
    assert "| Stable Audio | `StableAudioDiTModel` | It makes sound" in page.read_text()
    assert support.main([str(page), "--check"]) == 0
