"""Counting multiply-adds: what PyTorch runs as one fused operation is counted like its parts."""

from __future__ import annotations

import torch
from torch import nn

from tokenmerge.runtime.multiply_adds import count_multiply_adds, executed_in


def test_a_fused_transformer_layer_counts_as_much_as_one_with_hooks() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    tokens = torch.randn(1, 24, 16)
    projections, attention, mlp = 4 * 24 * 16 * 16, 2 * 24 * 24 * 16, 2 * 24 * 16 * 32
    assert count_multiply_adds(lambda: layer(tokens)) == projections + attention + mlp
    with executed_in([layer]) as counted, torch.no_grad():
        layer(tokens)
    assert counted.total == projections + attention + mlp
    assert torch.backends.mha.get_fastpath_enabled()
