"""How many hooks a model of SDXL's depth carries at a merged step: they stand only where the Program acts."""

from __future__ import annotations

import pytest
import torch
from diffusers import UNet2DConditionModel

import tokenmerge as tm
from tests.models.checks import count_hooks

MOST = 60


@pytest.fixture(scope="module")
def sdxl() -> UNet2DConditionModel:
    """The published number of blocks at a width of 8 channels."""
    return UNet2DConditionModel(
        block_out_channels=(8, 8, 8),
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(1, 1, 2),
        cross_attention_dim=8,
        use_linear_projection=True,
    ).eval()


@pytest.mark.parametrize("config", ["quality", "balanced", "fast", tm.TileMean()], ids=str)
@torch.no_grad()
def test_sdxl_carries_few_hooks(sdxl: UNet2DConditionModel, config: str | tm.TileMean) -> None:
    with tm.merged(sdxl, config):
        for timestep in (999, 949):  # the first step may be full
            sdxl(torch.zeros(1, 4, 64, 64), timestep, torch.zeros(1, 8, 8))
        assert 2 < count_hooks(sdxl) <= MOST
    assert count_hooks(sdxl) == 0
