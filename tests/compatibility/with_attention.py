"""Other ways to compute attention."""

from __future__ import annotations

from typing import Any

from diffusers.models.attention_dispatch import attention_backend
from row import Row
from tiny_pipelines import flux_pipeline, stable_diffusion


def slice_attention(pipe: Any) -> Any:
    pipe.enable_attention_slicing(1)
    return pipe


def fuse_projections(pipe: Any) -> Any:
    model = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    model.fuse_qkv_projections()
    return pipe


def plain_processors(pipe: Any) -> Any:
    """Matrix products instead of PyTorch's own attention."""
    from diffusers.models.attention_processor import AttnProcessor

    pipe.unet.set_attn_processor(AttnProcessor())
    return pipe


def own_processors(pipe: Any) -> Any:
    """A processor of a user's own, which looks on."""
    from diffusers.models.attention_processor import AttnProcessor2_0
    from diffusers.models.transformers.transformer_flux import FluxAttnProcessor

    kind: Any = AttnProcessor2_0 if hasattr(pipe, "unet") else FluxAttnProcessor
    model = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    model.set_attn_processor(type("Onlooker", (kind,), {})())
    return pipe


def other_backend(pipe: Any) -> Any:
    # diffusers makes it the choice of all models to come, which is not what other rows are about.
    with attention_backend("native"):
        pipe.transformer.set_attention_backend("_native_math")
    return pipe


SD, FLUX = ("SD 1.5", stable_diffusion), ("Flux", flux_pipeline)
ROWS = [
    Row("attention", "slicing", *SD, slice_attention, changes=False),
    *(Row("attention", "fused qkv", *on, fuse_projections, changes=False) for on in (SD, FLUX)),
    Row(
        "attention",
        "fused qkv, sampled keys (`keys=sampled`)",
        *SD,
        fuse_projections,
        options={"keys": "sampled"},
        scopes=(),
        changes=False,
    ),
    Row(
        "attention",
        "fused qkv, sampled keys (`keys=sampled`)",
        *FLUX,
        fuse_projections,
        options={"keys": "sampled"},
        scopes=("site",),
        changes=False,
    ),
    Row("attention", "`set_attn_processor` without PyTorch's own attention", *SD, plain_processors, changes=False),
    Row("attention", "`set_attn_processor` with one's own", *SD, own_processors, changes=False),
    Row("attention", "`set_attn_processor` with one's own", *FLUX, own_processors, changes=False),
    Row("attention", "`set_attention_backend`", *FLUX, other_backend, changes=False),
]
