"""Nodes for ComfyUI. Its modules are imported when its nodes are loaded, never before; nothing of it is copied."""

from __future__ import annotations

from typing import Any

from tokenmerge.errors import UnsupportedHostError

# What the nodes use is there from this release on.
OLDEST = "0.3.48"


def comfy_entrypoint() -> Any:
    """What ComfyUI calls to learn the nodes."""
    refuse_old()
    from tokenmerge.integrations.comfyui.families import register_families
    from tokenmerge.integrations.comfyui.nodes import TokenMergeExtension

    register_families()
    return TokenMergeExtension()


def refuse_old() -> None:
    """Say in a sentence that ComfyUI is too old, instead of failing at its first missing name."""
    try:
        from comfy.patcher_extension import WrappersMP
        from comfy_api.latest import ComfyExtension, io, ui

        complete = all((ComfyExtension, io.Schema, ui.PreviewText, WrappersMP.SAMPLER_SAMPLE))
    except (ImportError, AttributeError):
        complete = False
    if not complete:
        raise UnsupportedHostError(
            f"this ComfyUI is too old for the nodes of tokenmerge: they need {OLDEST} or newer. Update ComfyUI, or "
            f"remove tokenmerge from custom_nodes."
        )
