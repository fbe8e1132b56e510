"""Recorded kernels against what a reader counts by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from tokenmerge.simulate.recording import Work, record


def on_meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta", dtype=torch.bfloat16)


def test_a_linear_layer_is_one_product() -> None:
    layer = nn.Linear(16, 32, device="meta", dtype=torch.bfloat16)
    (kernel,) = record(lambda: layer(on_meta(1, 8, 16)))
    assert kernel.work is Work.PRODUCT
    assert kernel.flops == 2 * 8 * 16 * 32
    assert kernel.bytes == 2 * (8 * 16 + 16 * 32 + 32 + 8 * 32)


def test_views_and_allocations_launch_nothing() -> None:
    tokens = on_meta(2, 8, 16)
    assert record(lambda: torch.empty_like(tokens.transpose(1, 2).reshape(2, 4, 4, 8)[:, :2])) == []


def test_attention_is_one_kernel_and_a_mask_is_noted() -> None:
    query, key = on_meta(2, 4, 64, 8), on_meta(2, 4, 16, 8)
    (plain,) = record(lambda: scaled_dot_product_attention(query, key, key))
    (masked,) = record(lambda: scaled_dot_product_attention(query, key, key, attn_mask=on_meta(2, 1, 1, 16)))
    assert (plain.work, masked.work) == (Work.ATTENTION, Work.MASKED_ATTENTION)
    assert plain.flops == masked.flops == 2 * 2 * 4 * 64 * 16 * (8 + 8)
    assert masked.bytes - plain.bytes == 2 * 2 * 16


def test_flash_kernels_compute_with_more_channels_than_some_heads_have() -> None:
    for width, used in ((64, 1), (72, 72 / 96), (136, 136 / 192)):
        (kernel,) = record(lambda width=width: scaled_dot_product_attention(*[on_meta(1, 1, 16, width)] * 3))
        assert kernel.used == used


def test_attention_that_also_returns_sums_is_attention() -> None:
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    (kernel,) = record(lambda: flash(*[on_meta(1, 1, 16, 64)] * 3))
    assert kernel == record(lambda: scaled_dot_product_attention(*[on_meta(1, 1, 16, 64)] * 3))[0]


def test_a_norm_that_a_gpu_fuses_is_one_kernel() -> None:
    assert [kernel.name for kernel in record(lambda: rms_norm(on_meta(2, 8, 16), (16,)))] == ["rms_norm"]


def test_what_is_expanded_is_read_once() -> None:
    row = on_meta(1, 16)
    (kernel,) = record(lambda: on_meta(8, 16) + row.expand(8, 16))
    assert kernel.bytes == 2 * (8 * 16 + 16 + 8 * 16)
