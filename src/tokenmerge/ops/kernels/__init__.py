"""Fused kernels for GPUs, written in Triton. Optional: without Triton or a GPU the same is done in plain PyTorch."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch
from torch import Tensor, nn


@lru_cache(maxsize=1)
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def takes_kernels(*tensors: Tensor) -> bool:
    """Whether a fused kernel can be launched on these: plain tensors on a CUDA or ROCm device, without gradients.

    torch.compile fuses the plain form itself, and would have to be taught about ours.
    """
    if not tensors[0].is_cuda or torch.compiler.is_compiling() or not _triton_is_installed():
        return False
    # Others have no memory to point to (fake tensors), or mean something else by it.
    plain = all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
    return plain and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
