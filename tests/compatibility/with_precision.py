"""Weights kept in fewer bits."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from row import Row
from tiny_pipelines import flux_pipeline, stable_diffusion
from torch import nn
from with_offload import denoiser


def cast_layers(pipe: Any) -> Any:
    model: Any = denoiser(pipe)
    model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    return pipe


def quantise(pipe: Any) -> Any:
    """The layers of all blocks to int8, by PyTorch itself: they are replaced by others."""
    model = denoiser(pipe)
    layers = {
        name: torch.ao.quantization.default_dynamic_qconfig
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "transformer_blocks" in name and "norm" not in name
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.ao.quantization.quantize_dynamic(model, layers, inplace=True)
    return pipe


MODELS = (("SD 1.5", stable_diffusion), ("Flux", flux_pipeline))
ROWS = [
    *(Row("precision", "layerwise casting, float8", *on, cast_layers) for on in MODELS),
    *(Row("precision", "int8 layers (PyTorch's dynamic quantisation)", *on, quantise, tolerance=3e-2) for on in MODELS),
]
