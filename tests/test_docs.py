"""Every code block of README and docs runs or parses, and every link to a file of the repository has a target."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokenmerge.cli.main import build_parser
from tokenmerge.report.worthwhile import Worthwhile

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
# Pages whose blocks have tests that look at what they do.
ELSEWHERE = {"extending.md": "tests/methods/test_docs_methods.py", "comfyui.md": "tests/integrations"}
MOST_STEPS, SIDE = 3, 128


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def quick_pipeline() -> Any:
    """The tiny pipeline; whatever a page asks for, images are small and have few steps."""
    from tokenmerge.runtime.tiny_random import build_tiny_random

    pipe = build_tiny_random()
    pipe.set_progress_bar_config(disable=True)

    class Quick(type(pipe)):  # type: ignore[misc]
        def __call__(self, *args: Any, num_inference_steps: int = 50, **options: Any) -> Any:
            size = {"width": SIDE, "height": SIDE}
            return super().__call__(*args, num_inference_steps=min(num_inference_steps, MOST_STEPS), **options | size)

    pipe.__class__ = Quick
    return pipe


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in ELSEWHERE and blocks(page, "python")],
    ids=lambda page: page.name,
)
def test_its_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers
    from PIL import Image

    import tokenmerge
    from tokenmerge import zoo

    pipe = quick_pipeline()
    monkeypatch.chdir(tmp_path)
    # Stand-ins for what needs a download or minutes.
    monkeypatch.setattr(diffusers.DiffusionPipeline, "from_pretrained", lambda *_, **__: pipe)
    monkeypatch.setattr(zoo, "load", lambda *_, **__: quick_pipeline())
    # Their own tests try all they do; here one candidate is enough, and no block is timed.
    mild = tokenmerge.SampledKeys(tile=2)
    monkeypatch.setattr(tokenmerge, "tune", partial(tokenmerge.tune, candidates=[mild], progress=False))
    monkeypatch.setattr(tokenmerge, "worthwhile", lambda pipe, config, size: Worthwhile(config, ()))
    white = Image.new("L", (SIDE, SIDE))
    white.paste(255, (32, 32, 64, 64))
    names: dict[str, Any] = {"__name__": "page", "pipe": pipe, "mask": white, "tm": tokenmerge}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
        for held in (pipe, names["pipe"]):
            tokenmerge.remove(held)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    parser = build_parser()
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["tokenmerge"]:
            assert hasattr(parser.parse_args(words[1:]), "run"), line
        elif words[:1] == ["make"]:
            assert words[1] in targets, line
        elif words[:1] == ["python"] and words[1:2] != ["-m"]:
            assert (ROOT / words[1]).is_file(), line


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", text):
        assert (page.parent / target).exists(), target


def test_the_table_of_presets_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "_tools" / "presets.py"))["table"]()
    assert made in (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_simulated_figures_of_the_readme_are_those_of_the_file() -> None:
    simulated = json.loads((ROOT / "benchmarks" / "simulated" / "presets.json").read_text())
    titles = {"sdxl": "SDXL, 1024 px, 50 steps", "flux": "Flux.1, 1024 px, 28 steps"}
    expected = []
    for generation in simulated["generations"]:
        for preset in ("quality", "balanced", "fast"):
            rows = [row for row in generation["predictions"] if row["method"] == f"preset {preset}"]
            cells = [f"{row['eager_speedup']:.2f}x / {row['graph_speedup']:.2f}x" for row in rows]
            expected.append(f"| {titles[generation['model']]} | {preset} | {' | '.join(cells)} |")
    found = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith(tuple(f"| {t}" for t in titles.values()))
    ]
    assert found == expected
