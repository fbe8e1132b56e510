"""LongCat-Image and its editing model: `LongCatImageTransformer2DModel`."""

from __future__ import annotations

from tokenmerge.models.flux import FluxFamily


class LongCatImageFamily(FluxFamily):
    """As Flux.1."""

    name = "LongCat-Image"
    class_name = "LongCatImageTransformer2DModel"
