"""The families of ComfyUI's own modules, one small file each."""

from __future__ import annotations

from tokenmerge.integrations.comfyui.families.flux import ComfyFluxFamily
from tokenmerge.integrations.comfyui.families.ltx import ComfyLTXFamily
from tokenmerge.integrations.comfyui.families.lumina import ComfyLuminaFamily
from tokenmerge.integrations.comfyui.families.qwen_image import ComfyQwenImageFamily
from tokenmerge.integrations.comfyui.families.sd3 import ComfySD3Family
from tokenmerge.integrations.comfyui.families.unet import ComfyUNetFamily
from tokenmerge.integrations.comfyui.families.wan import ComfyWanFamily
from tokenmerge.models import FAMILIES, register_family

COMFYUI_FAMILIES = (
    ComfyUNetFamily(),
    ComfyFluxFamily(),
    ComfySD3Family(),
    ComfyQwenImageFamily(),
    ComfyLuminaFamily(),
    ComfyWanFamily(),
    ComfyLTXFamily(),
)


def register_families() -> None:
    """Make tokenmerge know ComfyUI's modules. Twice does no harm."""
    for family in COMFYUI_FAMILIES:
        if family not in FAMILIES:
            register_family(family)
