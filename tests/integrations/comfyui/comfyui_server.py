"""A running ComfyUI server, and its HTTP API."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comfyui_home import ROOT, base_folder

READY = "To see the GUI go to"
PATIENCE = 600  # seconds: the machine may be busy


class Server:
    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path) as answer:
            return json.loads(answer.read())

    def run(self, workflow: dict[str, Any]) -> dict[str, Any]:
        """Queue a workflow, wait for its end, and return its entry in the history."""
        body = json.dumps({"prompt": workflow}).encode()
        request = urllib.request.Request(f"{self.address}/prompt", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            number = json.loads(answer.read())["prompt_id"]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            history = self.get(f"/history/{number}")
            if number in history and history[number]["status"]["status_str"]:
                return dict(history[number])
            time.sleep(0.2)
        raise TimeoutError(f"ComfyUI has not ended the workflow in {PATIENCE} seconds.")


@contextmanager
def running_server(base: Path | None = None) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(here / "serve.py"), str(base or base_folder()), str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    printed = []
    try:
        for line in process.stdout:
            printed.append(line)
            if READY in line:
                break
        else:
            raise RuntimeError("ComfyUI did not start:\n" + "".join(printed[-40:]))
        with open(os.devnull, "w") as nowhere:  # else it would wait for a reader
            drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=nowhere)
            yield Server(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()
        drain.wait() if "drain" in locals() else None
