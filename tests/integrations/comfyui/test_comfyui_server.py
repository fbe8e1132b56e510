"""ComfyUI's own server on loopback: the nodes over its HTTP API and in its page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comfyui_home import ROOT
from comfyui_page import MISSING, find_chromium, opened
from comfyui_server import Server, running_server
from PIL import Image
from workflows import node

from tokenmerge.integrations.comfyui.nodes import UNTOUCHED


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


def workflow() -> dict[str, dict[str, Any]]:
    sampler = {"seed": 1, "steps": 6, "cfg": 2.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    links = {"model": ["4", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]}
    return {
        "1": node("TestSDXL"),
        "2": node("TestText", seed=1),
        "3": node("EmptyLatentImage", width=384, height=256, batch_size=1),
        "4": node("TokenMerge", model=["1", 0], preset="balanced", start_percent=0.0, end_percent=1.0),
        "5": node("KSampler", **sampler, **links),
        "6": node("TokenMergeExplain", model=["4", 0], after=["5", 0]),
        "7": node("TestDecode", samples=["5", 0]),
        "8": node("PreviewImage", images=["7", 0]),
    }


def advanced(**options: Any) -> dict[str, Any]:
    when = {"start_percent": 0.0, "end_percent": 1.0}
    return node("TokenMergeAdvanced", model=["1", 0], **{"method": "TileMean", **UNTOUCHED, **when, **options})


def test_the_api_knows_the_nodes(server: Server) -> None:
    inputs = {}
    for name in ("TokenMerge", "TokenMergeAdvanced", "TokenMergeExplain"):
        known = server.get(f"/object_info/{name}")[name]
        assert known["python_module"] == "custom_nodes.tokenmerge"
        assert known["description"]
        inputs[name] = known["input"]
    assert inputs["TokenMerge"]["required"]["preset"][1]["options"] == ["quality", "balanced", "fast"]
    assert {"model", "method", "start_percent", "end_percent", *UNTOUCHED} == {
        *inputs["TokenMergeAdvanced"]["required"]
    }
    assert {*inputs["TokenMerge"]["optional"]} == {*inputs["TokenMergeAdvanced"]["optional"]} == {"keep"}


def test_a_workflow_over_the_api(server: Server) -> None:
    done = server.run(workflow())
    assert done["status"]["status_str"] == "success"
    assert "16 x 24" in done["outputs"]["6"]["text"][0]
    assert done["outputs"]["8"]["images"]


def test_wrong_settings_over_the_api(server: Server) -> None:
    wrong = workflow()
    wrong["4"]["inputs"] |= {"start_percent": 0.9, "end_percent": 0.2}
    done = server.run(wrong)
    assert done["status"]["status_str"] == "error"
    [error] = [data for kind, data in done["status"]["messages"] if kind == "execution_error"]
    assert error["node_type"] == "TokenMerge"
    assert "start_percent is 0.9 and end_percent is 0.2" in error["exception_message"]


@pytest.mark.skipif(find_chromium() is None, reason=MISSING)
def test_the_page_runs_a_workflow_and_shows_the_explanation(server: Server, tmp_path: Path) -> None:
    with opened(server.address) as page:
        page.load(workflow())
        shown = page.run()
        page.screenshot(tmp_path / "page.png")
    assert "SampledKeys on UNetModel" in shown
    assert "of them skipped" in shown
    assert "16 x 24" in shown
    assert (tmp_path / "page.png").stat().st_size > 20_000


@pytest.mark.skipif(find_chromium() is None, reason=MISSING)
def test_the_advanced_node_on_the_page(server: Server) -> None:
    """Its widgets hold what a workflow says, and what they hold is what runs."""
    with opened(server.address) as page:
        page.load({**workflow(), "4": advanced(method="ToMA", ratio=0.75, tile=4)})
        shown = page.run()
        inputs = page.saved()["output"]["4"]["inputs"]
    assert (inputs["method"], inputs["ratio"], inputs["tile"], inputs["full_steps"]) == ("ToMA", 0.75, 4, 0)
    assert "ToMA on UNetModel: ratio 0.75" in shown
    assert "384 -> 96" in shown


@pytest.mark.skipif(find_chromium() is None, reason=MISSING)
def test_the_example_workflows_open_as_files_and_as_images(server: Server) -> None:
    with opened(server.address) as page:
        for path in sorted((ROOT / "example_workflows").glob("*.json")):
            saved = json.loads(path.read_text())
            page.open(saved)
            assert sorted(page.types()) == sorted(node["type"] for node in saved["nodes"])
            texts = Image.open(path.with_suffix(".png")).text  # type: ignore[attr-defined]
            assert json.loads(texts["workflow"])["nodes"] == saved["nodes"]
            assert set(json.loads(texts["prompt"])) == {str(node["id"]) for node in saved["nodes"]}
            page.open({**saved, "nodes": saved["nodes"][:1], "links": []})
            page.drop(path.with_suffix(".png"))
            page.wait_for_nodes(len(saved["nodes"]))
            assert "TokenMerge" in page.types()
