"""Where ComfyUI is, and what has to be said before it can be imported without a GPU."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
COMFYUI = Path(sys.prefix) / "ComfyUI"
FOLDERS = ("custom_nodes", "models/diffusion_models", "input", "output", "temp", "user/default")
# Of the page: no tour for new users, no map over the corner of the graph.
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False, "Comfy.Graph.CanvasInfo": False}
_LIBRARIES: list[torch.library.Library] = []  # what is defined lives as long as this does


def base_folder() -> Path:
    """A folder for ComfyUI's files, with this repository among its custom nodes, as a user has it."""
    base = Path(tempfile.mkdtemp(prefix="comfyui-"))
    for folder in FOLDERS:
        (base / folder).mkdir(parents=True)
    (base / "custom_nodes" / "tokenmerge").symlink_to(ROOT, target_is_directory=True)
    (base / "custom_nodes" / "testing_nodes").symlink_to(Path(__file__).parent / "testing_nodes")
    (base / "user" / "default" / "comfy.settings.json").write_text(json.dumps(SETTINGS))
    return base


def define_torchvision() -> None:
    """PyPI's torchvision is a build for CUDA: its operators are missing here, and it asks for them when imported."""
    if not _LIBRARIES:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)


def prepare(base: Path) -> None:
    """Make `import comfy` work in this process, on the CPU."""
    define_torchvision()
    sys.path.insert(0, str(COMFYUI))
    from comfy.cli_args import args

    args.cpu = True
    args.base_directory = str(base)
    args.database_url = "sqlite:///:memory:"
