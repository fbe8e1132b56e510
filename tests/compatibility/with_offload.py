"""Weights that wait elsewhere. Without an accelerator they wait and are used on the CPU: the hooks are the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from row import Row
from tiny_pipelines import flux_pipeline, stable_diffusion
from torch import nn

CPU = torch.device("cpu")


def denoiser(pipe: Any) -> nn.Module:
    model: nn.Module = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    return model


def offload_layers(pipe: Any) -> Any:
    """What `enable_sequential_cpu_offload` does, which asks for an accelerator."""
    from accelerate import cpu_offload

    for model in models(pipe):
        cpu_offload(model, execution_device=CPU)
    return pipe


def offload_models(pipe: Any) -> Any:
    """What `enable_model_cpu_offload` does, which asks for an accelerator."""
    from accelerate import cpu_offload_with_hook

    hook = None
    for model in models(pipe):
        _, hook = cpu_offload_with_hook(model, execution_device=CPU, prev_module_hook=hook)
    return pipe


def models(pipe: Any) -> list[nn.Module]:
    return [part for part in pipe.components.values() if isinstance(part, nn.Module)]


def offload_groups(pipe: Any, **options: Any) -> Any:
    denoiser(pipe).enable_group_offload(onload_device=CPU, offload_device=CPU, **options)
    return pipe


SWITCHES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sequential CPU offload": (offload_layers, "`accelerate.cpu_offload` on each model, executed on the CPU"),
    "model CPU offload": (offload_models, "`accelerate.cpu_offload_with_hook` on each model, executed on the CPU"),
    "group offload by blocks": (
        partial(offload_groups, offload_type="block_level", num_blocks_per_group=1),
        "`enable_group_offload`, brought in on the CPU",
    ),
    "group offload by leaves": (
        partial(offload_groups, offload_type="leaf_level"),
        "`enable_group_offload`, brought in on the CPU",
    ),
}
WITHOUT_ACCELERATOR = {"not_on": "<0.41", "why_not": "diffusers before 0.41 offloads groups to accelerators alone"}
ROWS = [
    Row(
        "offload",
        name,
        on,
        build,
        switch_on,
        changes=False,
        remark=remark,
        **(WITHOUT_ACCELERATOR if name.startswith("group") else {}),
    )
    for name, (switch_on, remark) in SWITCHES.items()
    for on, build in (("SD 1.5", stable_diffusion), ("Flux", flux_pipeline))
]
