"""ComfyUI's page in a real browser: load a workflow, run it, take its image."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comfyui_home import ROOT

sys.path.insert(0, str(ROOT / "tests" / "web"))

from chromium import MISSING, find_chromium
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import Route, sync_playwright

__all__ = ["MISSING", "Page", "find_chromium", "opened"]

PATIENCE = 600_000  # milliseconds: the machine may be busy
KNOWS = "window.app?.canvas && 'TokenMerge' in window.LiteGraph.registered_node_types"
SHOWN = "window.app.graph.nodes.find((node) => node.type === 'TokenMergeExplain')?.widgets?.[0]?.value"
# Of its server: nodes behind Explain have run too, and no progress is shown over the graph.
IDLE = "fetch('/prompt').then((reply) => reply.json()).then((queue) => queue.exec_info.queue_remaining === 0)"
# Where each node stands: its number in the workflow -> [x, y].
PLACE = """places => {
    for (const node of window.app.graph.nodes) {
        if (node.id in places) { node.pos = places[node.id]; }
    }
    window.app.canvas.setDirty(true, true);
}"""
FIT = """() => {
    const nodes = window.app.graph.nodes;
    const left = Math.min(...nodes.map((node) => node.pos[0])) - 30;
    const top = Math.min(...nodes.map((node) => node.pos[1])) - 80;
    const right = Math.max(...nodes.map((node) => node.pos[0] + node.size[0])) + 30;
    const bottom = Math.max(...nodes.map((node) => node.pos[1] + node.size[1])) + 30;
    const view = window.app.canvas.ds;
    const scale = Math.min((window.innerWidth - 80) / (right - left), (window.innerHeight - 120) / (bottom - top), 1);
    view.scale = scale;
    view.offset[0] = 70 / scale - left;
    view.offset[1] = 90 / scale - top;
    window.app.canvas.setDirty(true, true);
}"""


class Page:
    def __init__(self, page: BrowserPage) -> None:
        self._page = page

    def load(self, workflow: dict[str, Any]) -> None:
        """A workflow in the API's format."""
        self._page.evaluate("workflow => window.app.loadApiJson(workflow, 'workflow')", workflow)
        self.wait_for_nodes(len(workflow))

    def open(self, workflow: dict[str, Any]) -> None:
        """A workflow as the page saves it."""
        self._page.evaluate("workflow => window.app.loadGraphData(workflow)", workflow)
        self.wait_for_nodes(len(workflow["nodes"]))

    def drop(self, image: Path) -> None:
        """An image with a workflow in it, as if it were dropped onto the page."""
        data = list(image.read_bytes())
        self._page.evaluate(
            "bytes => window.app.handleFile(new File([new Uint8Array(bytes)], 'workflow.png', {type: 'image/png'}))",
            data,
        )

    def wait_for_nodes(self, count: int) -> None:
        self._page.wait_for_function(f"window.app.graph.nodes.length === {count}", timeout=PATIENCE)

    def types(self) -> list[str]:
        return list(self._page.evaluate("window.app.graph.nodes.map((node) => node.type)"))

    def place(self, places: dict[str, list[int]]) -> None:
        self._page.evaluate(PLACE, places)

    def saved(self) -> dict[str, Any]:
        """The workflow as the page saves it, and as its API takes it."""
        return dict(self._page.evaluate("window.app.graphToPrompt()"))

    def run(self) -> str:
        """Run what is loaded, and return what Token Merge Explain shows."""
        self._page.evaluate("window.app.queuePrompt(0, 1)")
        self._page.wait_for_function(SHOWN, timeout=PATIENCE)
        self._page.wait_for_function(IDLE, timeout=PATIENCE)
        return str(self._page.evaluate(SHOWN))

    def screenshot(self, path: Path) -> None:
        self._page.evaluate(FIT)
        self._page.wait_for_timeout(1500)  # the canvas is painted in its own time
        self._page.screenshot(path=str(path))


@contextmanager
def opened(address: str) -> Iterator[Page]:
    def only_here(route: Route) -> None:
        route.continue_() if route.request.url.startswith(address) else route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            page.route("**/*", only_here)
            page.goto(address, timeout=PATIENCE)
            page.wait_for_function(KNOWS, timeout=PATIENCE)
            yield Page(page)
        finally:
            browser.close()
