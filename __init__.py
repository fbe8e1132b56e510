"""Loaded by ComfyUI if this repository lies in its custom_nodes. Everything else imports src/tokenmerge."""

import sys
from pathlib import Path

try:
    from tokenmerge.integrations.comfyui import comfy_entrypoint
except ModuleNotFoundError as error:
    if error.name != "tokenmerge":
        raise
    # Not installed: a clone is enough.
    sys.path.append(str(Path(__file__).parent / "src"))
    from tokenmerge.integrations.comfyui import comfy_entrypoint

# For ComfyUI's page, from this file's folder.
WEB_DIRECTORY = "src/tokenmerge/integrations/comfyui/web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
