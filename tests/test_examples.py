"""Every example runs with --tiny, and the notebook's cells run in order."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py"))
ON_RAY = "ray_batch"
# What must stand in the printed text: proof that something was merged, or learned.
SAYS = {"tune_to_budget": "measured:", "train": "5 steps, loss", "few_steps": "SampledKeys"}


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != ON_RAY])
def test_it_runs_on_a_tiny_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--min-psnr", "5"] if name == "tune_to_budget" else []
    loaded(name).main(["--tiny", *options])
    assert SAYS.get(name, "multiply-adds of one call") in capsys.readouterr().out


@pytest.mark.long
def test_the_batch_on_ray_writes_an_image_for_each_prompt(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    loaded(ON_RAY).main(["red apple", "red heart", "--tiny", "--workers", "1", "--out", str(tmp_path)])
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_the_list_names_every_example() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in SCRIPTS:
        assert f"[{name}.py]({name}.py)" in text


def test_the_notebook_runs_offline() -> None:
    notebook = json.loads((FOLDER / "first_steps.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            code = "".join(cell["source"]).replace("10", "3")  # steps
            exec(code, names)
