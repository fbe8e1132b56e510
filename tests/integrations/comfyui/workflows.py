"""Workflows in ComfyUI's API format, and its own executor to run them."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import execution
import nodes
from comfyui_home import COMFYUI

Workflow = dict[str, dict[str, Any]]
EXTRAS = ("nodes_mask.py", "nodes_easycache.py", "nodes_torch_compile.py", "nodes_cond.py")


@lru_cache
def load_nodes() -> None:
    """Have ComfyUI load its custom nodes, ours among them, as its server does."""
    asyncio.run(nodes.init_external_custom_nodes())
    for name in EXTRAS:
        asyncio.run(nodes.load_custom_node(str(COMFYUI / "comfy_extras" / name), module_parent="comfy_extras"))


class Executed:
    """What became of a workflow."""

    def __init__(self, executor: Any) -> None:
        self.success: bool = executor.success
        self.messages: dict[str, Any] = dict(executor.status_messages)
        self.outputs: dict[str, Any] = executor.history_result.get("outputs", {})

    @property
    def error(self) -> str:
        return str(self.messages["execution_error"]["exception_message"])

    @property
    def failed_node(self) -> str:
        return str(self.messages["execution_error"]["node_type"])


class ComfyUI:
    """ComfyUI's executor, which keeps from one workflow to the next what has not changed."""

    def __init__(self) -> None:
        load_nodes()
        server = SimpleNamespace(client_id=None, last_node_id=None, last_prompt_id=None, send_sync=lambda *_: None)
        caches = {"lru": 0, "ram": 0.0, "ram_inactive": 0.0}
        self._executor = execution.PromptExecutor(server, execution.CacheType.CLASSIC, caches)

    def run(self, workflow: Workflow) -> Executed:
        valid, error, outputs, details = asyncio.run(execution.validate_prompt("test", workflow, None))
        assert valid, (error, details)
        self._executor.execute(workflow, "test", {}, outputs)
        return Executed(self._executor)


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def sampling(model: list[Any], name: str, **others: Any) -> Workflow:
    """A sampler and a node that saves its latents, under a name."""
    inputs = {
        "model": model,
        "seed": 3,
        "steps": 4,
        "cfg": 2.0,
        "sampler_name": "euler",
        "scheduler": "simple",
        "positive": ["positive", 0],
        "negative": ["negative", 0],
        "latent_image": ["latent", 0],
        "denoise": 1.0,
        **others,
    }
    return {
        name: node("KSampler", **inputs),
        f"save {name}": node("SaveLatent", samples=[name, 0], filename_prefix=name),
    }


def inputs_of(width: int = 384, height: int = 256) -> Workflow:
    return {
        "model": node("TestSDXL"),
        "positive": node("TestText", seed=1),
        "negative": node("TestText", seed=2),
        "latent": node("EmptyLatentImage", width=width, height=height, batch_size=1),
    }


def saved(base: Path, name: str) -> Any:
    """The newest latents that a workflow has saved under a name."""
    import safetensors.torch

    newest = max((base / "output").glob(f"{name}_*.latent"))
    return safetensors.torch.load_file(newest)["latent_tensor"]
