"""Python time that merging adds to a step: an SDXL- and a Flux-shaped model whose own work is next to nothing.

    python benchmarks/engine/python_time.py result.json

The models have the published number of blocks at a width of 8 channels, so what a step takes is what Python and the
launching of operations take. `in_hooks_ms` is the time inside our hooks at the cheapest merged step, tensor operations
included; the others are CPU time of a whole step. All are the least of many.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from torch import nn

import tokenmerge as tm

STEPS, REPEATS = 12, 12


def sdxl() -> tuple[nn.Module, dict[str, Any]]:
    model = UNet2DConditionModel(
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 8, 8),
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(1, 1, 2),
        cross_attention_dim=8,
        use_linear_projection=True,
    )
    return model.eval(), {"sample": torch.randn(1, 4, 32, 32), "encoder_hidden_states": torch.randn(1, 8, 8)}


def flux() -> tuple[nn.Module, dict[str, Any]]:
    model = FluxTransformer2DModel(
        in_channels=4,
        num_layers=19,
        num_single_layers=38,
        attention_head_dim=8,
        num_attention_heads=1,
        joint_attention_dim=8,
        pooled_projection_dim=8,
        axes_dims_rope=(2, 2, 4),
    )
    ids = torch.zeros(8, 8, 3)
    ids[..., 1] = torch.arange(8)[:, None]
    ids[..., 2] = torch.arange(8)
    inputs = {
        "hidden_states": torch.randn(1, 64, 4),
        "encoder_hidden_states": torch.randn(1, 8, 8),
        "pooled_projections": torch.randn(1, 8),
        "img_ids": ids.view(-1, 3),
        "txt_ids": torch.zeros(8, 3),
    }
    return model.eval(), inputs


def seconds_of_steps(model: nn.Module, inputs: dict[str, Any]) -> list[float]:
    """The least CPU seconds of each step over several generations."""
    best = [float("inf")] * STEPS
    for _ in range(REPEATS):
        text = inputs["encoder_hidden_states"].clone()  # another generation
        for step in range(STEPS):
            timestep = torch.tensor([1.0 - step / 1000])
            begun = time.process_time()
            model(**{**inputs, "encoder_hidden_states": text}, timestep=timestep)
            best[step] = min(best[step], time.process_time() - begun)
    return best


def timed(model: nn.Module, spent: list[float], called: list[int]) -> None:
    """Have every hook add the time that it takes to `spent[0]`, and itself to `called[0]`."""

    def wrapped(hook: Any) -> Any:
        def run(*args: Any) -> Any:
            begun = time.thread_time()
            try:
                return hook(*args)
            finally:
                spent[0] += time.thread_time() - begun
                called[0] += 1

        run.__self__ = getattr(hook, "__self__", None)  # type: ignore[attr-defined]
        return run

    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                hooks[key] = wrapped(hook)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@torch.no_grad()
def measure(name: str, build: Any, config: tm.MergeConfig) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = build()
    plain = min(seconds_of_steps(model, inputs))
    handle = tm.apply(model, config)
    merged = min(seconds_of_steps(model, inputs))  # the cheapest kind of step: a merged one that reuses its plan
    hooks = hooks_of(model)
    spent, called, least = [0.0], [0], [(float("inf"), 0)] * STEPS
    timed(model, spent, called)
    for _ in range(REPEATS):
        text = inputs["encoder_hidden_states"].clone()
        for step in range(STEPS):
            spent[0], called[0] = 0.0, 0
            model(**{**inputs, "encoder_hidden_states": text}, timestep=torch.tensor([1.0 - step / 1000]))
            least[step] = min(least[step], (spent[0], called[0]))
    inside, calls = min(least)
    handle.remove()
    return {
        "model": name,
        "method": type(config).__name__,
        "hooks": hooks,
        "unmerged_ms": round(plain * 1e3, 2),
        "merged_ms": round(merged * 1e3, 2),
        "hook_calls": calls,
        "in_hooks_ms": round(inside * 1e3, 2),
    }


def main() -> None:
    torch.set_num_threads(1)
    # What a correction and merging around transformers cost, and what keys alone cost; on grids this small too.
    tile_mean, keys = tm.TileMean(min_tokens=0), tm.SampledKeys(min_tokens=0)
    rows = [
        measure("SDXL", sdxl, tile_mean),
        measure("SDXL", sdxl, keys),
        measure("Flux.1", flux, tile_mean),
    ]
    for row in rows:
        print(row)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
