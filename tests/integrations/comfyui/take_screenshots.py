"""Writes the example workflows, as JSON and as images to drop onto the page, and the screenshots of docs/comfyui.md.

python tests/integrations/comfyui/take_screenshots.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from comfyui_home import ROOT, base_folder, prepare
from PIL import Image
from PIL.PngImagePlugin import PngInfo

FOLDER = ROOT / "example_workflows"
IMAGES = ROOT / "docs" / "images"
PLACES = {"1": [0, 0], "2": [0, 120], "3": [0, 300], "4": [330, 0], "5": [660, 0], "7": [660, 320], "8": [660, 420]}


def embed(image: Path, saved: dict[str, Any], path: Path) -> None:
    """An image that ComfyUI opens as a workflow."""
    texts = PngInfo()
    texts.add_text("prompt", json.dumps(saved["output"]))
    texts.add_text("workflow", json.dumps(saved["workflow"]))
    Image.open(image).convert("RGB").quantize(64).save(path, pnginfo=texts, optimize=True)


def main() -> None:
    prepare(base_folder())
    from comfyui_page import opened
    from comfyui_server import running_server
    from test_comfyui_server import advanced, workflow

    from example_workflows import EXAMPLES, FILES

    FOLDER.mkdir(exist_ok=True)
    shot = Path(tempfile.mkdtemp()) / "shot.png"
    base = base_folder()
    for name in FILES:  # empty: the page only looks whether they are there
        (base / "models" / name).parent.mkdir(exist_ok=True)
        (base / "models" / name).touch()
    with running_server(base) as server, opened(server.address) as page:
        for name, make in EXAMPLES.items():
            api, places = make()
            page.load(api)
            page.place(places)
            page.screenshot(shot)
            saved = page.saved()
            (FOLDER / f"{name}.json").write_text(json.dumps(saved["workflow"], indent=1) + "\n")
            embed(shot, saved, FOLDER / f"{name}.png")
        changed = {"4": advanced(method="TileMean", tile=4, full_steps=4, skip_blocks=0)}
        for name, api in (("explain", workflow()), ("advanced", {**workflow(), **changed})):
            page.load(api)
            page.place({**PLACES, "6": [1000, 0]})
            page.run()
            page.screenshot(shot)
            Image.open(shot).convert("RGB").quantize(128).save(IMAGES / f"comfyui-{name}.png")


if __name__ == "__main__":
    main()
