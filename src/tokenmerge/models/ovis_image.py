"""Ovis-Image: `OvisImageTransformer2DModel`."""

from __future__ import annotations

from tokenmerge.models.base import Part
from tokenmerge.models.flux import SINGLE_PARTS, FluxFamily


class OvisImageFamily(FluxFamily):
    """As Flux.1, but what gates the MLP of single blocks is made by the projection too, and is split off behind it."""

    name = "Ovis-Image"
    class_name = "OvisImageTransformer2DModel"
    single_parts = (*SINGLE_PARTS[:2], Part(("mlp",), "proj_mlp", text="first"))
