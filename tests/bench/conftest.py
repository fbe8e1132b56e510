"""A UNet small enough to run in milliseconds, with blocks at two levels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tokenmerge.bench.subject import Subject, subject_of

SIDE = 256  # pixels: 1,024 tokens at the top level, 256 below


@pytest.fixture
def unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    model: nn.Module = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=8,
    )
    return model.eval().requires_grad_(False)


@pytest.fixture
def subject(unet: nn.Module) -> Subject:
    return subject_of(unet, (SIDE, SIDE), 2)
