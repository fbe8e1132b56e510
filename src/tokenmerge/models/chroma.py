"""Chroma: `ChromaTransformer2DModel`."""

from __future__ import annotations

from tokenmerge.models.flux import FluxFamily


class ChromaFamily(FluxFamily):
    """As Flux.1, but text and image are joined once, and its mask hides padded text from queries too."""

    name = "Chroma"
    class_name = "ChromaTransformer2DModel"
    single_output = None
