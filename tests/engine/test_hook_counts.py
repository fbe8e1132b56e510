"""How many hooks a model of SDXL's depth carries, and that none is idle: they stand only where the Program acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel

import tokenmerge as tm
from tests.models.checks import count_hooks, session_on

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


# They read the call, find the grid and count: what passes stays as it is.
READERS = {"Session.enter", "Session.leave", "StackRun.enter_owner"}


@pytest.mark.parametrize("config", ["quality", "balanced", "fast", tm.TileMean()], ids=str)
@torch.no_grad()
def test_no_hook_is_idle_at_a_merged_step(sdxl: UNet2DConditionModel, config: str | tm.TileMean) -> None:
    changes: dict[str, list[bool]] = {}

    def watched(hook: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            result = hook(*given)
            changes.setdefault(hook.__qualname__, []).append(result is not None)
            return result

        return called

    with tm.merged(sdxl, config):
        for timestep in (999, 949):
            sdxl(torch.zeros(1, 4, 64, 64), timestep, torch.zeros(1, 8, 8))
        session = session_on(sdxl)
        tables = [table for module in sdxl.modules() for table in (module._forward_pre_hooks, module._forward_hooks)]
        before = [dict(table) for table in tables]
        for table in tables:
            table.update({key: watched(hook) for key, hook in table.items()})
        merged = session.merged_calls
        sdxl(torch.zeros(1, 4, 64, 64), 899, torch.zeros(1, 8, 8))
        assert session.merged_calls == merged + 1
        for table, hooks in zip(tables, before, strict=True):
            table.update(hooks)
        assert sum(map(len, changes.values())) == count_hooks(sdxl)  # each is called, and once
    assert changes.keys() - READERS
    idle = {name for name, changed in changes.items() if name not in READERS and not all(changed)}
    assert not idle
