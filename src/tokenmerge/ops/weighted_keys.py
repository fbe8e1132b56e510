"""Attention to keys that count several times, without a mask: the fastest kernels take none.

There are two exact ways. If all keys of the image have one weight, attention runs over them and over the other keys,
and the sums that each answer was divided by say how to combine the two. If weights differ from key to key, a key gets
its weight as one more channel, which every query reads as a constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

ATTENTION = functional.scaled_dot_product_attention
# Multiply-adds of one attention. A mask makes a smaller one less slow than what it launches without a mask, about six
# kernels more: 0.2 ms of the host, and of the device a third of the time of one without a mask.
SMALL = 3e10
# Flash kernels are made for channels in eights, and for at most this many.
CHANNELS, MOST_CHANNELS = 8, 256
# In place of minus infinity, for keys that stand for nothing: kernels that scale keys cannot scale that.
NOTHING = -1e4

_as_gpu: set[str] = set()


def weighs_without_mask(device: torch.device) -> bool:
    """Whether a device has flash attention, which takes no mask. Asked outside of compiled code."""
    if device.type != "cuda":
        return device.type in _as_gpu
    # Cards before Ampere have none. PyTorch calls AMD's cards CUDA devices, too.
    known = torch.cuda.is_available() and torch.version.hip is None
    return not known or torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def as_on_gpu(device_type: str) -> Iterator[None]:
    """Have keys weighted on this type of device as on a GPU: for simulations and tests."""
    added = {device_type} - _as_gpu
    _as_gpu.update(added)
    try:
        yield
    finally:
        _as_gpu.difference_update(added)


class Kernel(Protocol):
    """What computes attention over heads (B, H, L, D)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        """The answers, (B, H, Q, D)."""

    def attend_with_sums(
        self, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor] | None:
        """The answers, and the logarithms of the sums that they were divided by, (B, H, Q); None if not known."""


class PyTorchKernel:
    """PyTorch's own attention."""

    def __init__(self, sums_by: str = "") -> None:
        """sums_by: "flash" or "cudnn", the kernel that is asked for sums; "": none."""
        self._sums_by = sums_by

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        return ATTENTION(query, key, value, attn_mask=mask, **options)

    def attend_with_sums(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **options: Any
    ) -> tuple[Tensor, Tensor] | None:
        # The backward pass of these kernels knows nothing of sums.
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        if trains or any(options.values()) or not self._sums_by:  # dropout, a causal mask, fewer heads of keys
            return None
        if query.device.type == "cpu":
            answers, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, scale=scale)
            return answers, sums
        width = query.shape[-1]
        if query.dtype not in (torch.float16, torch.bfloat16) or width % CHANNELS or width > MOST_CHANNELS:
            return None
        if self._sums_by == "flash":
            answers, sums, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
            return answers, sums
        # Called like this, cuDNN takes any tensor for a contiguous one.
        heads = [each.contiguous() for each in (query, key, value)]
        answers, sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*heads, None, True, scale=scale)
        return answers, sums.flatten(2)


def attend_weighted(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor,
    image: tuple[int, int] | None,
    **options: Any,
) -> Tensor:
    """(B, H, Q, D): attention with weights (B, 1, 1, K) added to its logits, and no mask if that can be.

    image: the first key of the image and the one behind its last, if they have one weight and all others have none.
    """
    if image is not None:
        answers = _in_two(kernel, query, key, value, weights, image, **options)
        if answers is not None:
            return answers
    if _width_with_weight(query) > MOST_CHANNELS:
        return kernel.attend(query, key, value, weights, **options)
    return _widened(kernel, query, key, value, weights, **options)


def _in_two(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor,
    image: tuple[int, int],
    **options: Any,
) -> Tensor | None:
    """Over the keys of the image and over all others; None if the kernel gives no sums."""
    first, end = image
    of_image = kernel.attend_with_sums(query, key[..., first:end, :], value[..., first:end, :], **options)
    if of_image is None:
        return None
    of_others = kernel.attend_with_sums(query, _without(key, first, end), _without(value, first, end), **options)
    assert of_others is not None
    added = weights[..., 0, first : first + 1]  # (B, 1, 1)
    share = torch.sigmoid(of_image[1] - of_others[1] + added)
    return torch.lerp(of_others[0], of_image[0], share.unsqueeze(-1).to(query.dtype))


def _without(heads: Tensor, first: int, end: int) -> Tensor:
    """(B, H, K, D) without the keys from `first` to `end`: most often a view."""
    before, behind = heads[..., :first, :], heads[..., end:, :]
    if not before.shape[-2]:
        return behind
    return torch.cat([before, behind], dim=-2) if behind.shape[-2] else before


def _widened(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """Heads with a channel for weights, and zeros up to the next width that kernels are made for."""
    width, out_width = query.shape[-1], value.shape[-1]
    more = _width_with_weight(query) - width
    scale = 1 / math.sqrt(width) if scale is None else scale
    constant = 2.0 ** round(-math.log2(scale))  # a power of two, by which nothing is rounded
    channel = (weights.clamp(min=NOTHING) / (scale * constant)).to(key.dtype).transpose(-1, -2)  # (B, 1, K, 1)
    channels = functional.pad(channel, (0, more - 1)).expand(*key.shape[:-1], -1)
    query = functional.pad(query, (0, more), value=constant)
    key = torch.cat([key, channels], dim=-1)
    value = functional.pad(value, (0, width + more - out_width))
    return kernel.attend(query, key, value, None, scale=scale, **options)[..., :out_width]


def _width_with_weight(heads: Tensor) -> int:
    width = heads.shape[-1]
    return width + CHANNELS - width % CHANNELS
