"""Starts ComfyUI's own server on loopback: python serve.py FOLDER PORT"""

from __future__ import annotations

import runpy
import sys

from comfyui_home import COMFYUI, define_torchvision


def main() -> None:
    base, port = sys.argv[1:]
    define_torchvision()
    options = ["--cpu", "--listen", "127.0.0.1", "--port", port, "--base-directory", base]
    options += ["--database-url", "sqlite:///:memory:", "--disable-api-nodes", "--disable-auto-launch"]
    sys.argv = [str(COMFYUI / "main.py"), *options]
    sys.path.insert(0, str(COMFYUI))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
