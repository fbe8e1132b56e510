"""Flux.2 dev and Klein: `Flux2Transformer2DModel`."""

from __future__ import annotations

from tokenmerge.models.base import Part
from tokenmerge.models.flux import FluxFamily


class Flux2Family(FluxFamily):
    """As Flux.1, but text and image are joined once, between double and single blocks."""

    name = "Flux.2 (dev, Klein)"
    class_name = "Flux2Transformer2DModel"
    double_parts = (Part(("self",), "attn", mask="4d", text="first"), Part(("mlp",), "ff"))
    # The single blocks' attention has the MLP inside it, and gets text and image in one sequence.
    single_parts = (Part(("self", "mlp"), "attn", mask="4d", text="first"),)
    single_output = None
    axes = 4
    guidance = 4.0
    refused = "kv_cache_mode"
    refused_because = (
        "Flux.2 was called with kv_cache_mode, which keeps keys of references between steps and puts "
        "references in front of the image, where merging does not look: call it without kv_cache_mode."
    )
