"""Wan 2.1 and 2.2 in ComfyUI: `WanModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from torch import nn

from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.models.base import TIME_PER_TOKEN, Part, Rotary, Stack, blocks_of, rows_at

PARTS = Part(("self",), "self_attn"), Part(("cross",), "cross_attn"), Part(("mlp",), "ffn")
ROTARY = Rotary("freqs", rows_at, per_sample=True)


class ComfyWanFamily(ComfyFamily):
    """Tokens of all frames in one sequence. A reference image in front of them and latents behind them stay whole."""

    name = "Wan in ComfyUI (2.1, 2.2)"
    class_name = "WanModel"
    video = True

    def recognises(self, model: nn.Module) -> bool:
        """Not its relatives, such as VACE: those have streams of tokens that run in parallel to this one."""
        return type(model).__name__ == self.class_name and super().recognises(model)

    def stacks(self, model: Any) -> list[Stack]:
        blocks = blocks_of(model, "blocks", PARTS, rotary=ROTARY)
        grid = partial(_grid, model.patch_size)
        return [Stack("blocks", "blocks", model, grid, blocks, trailing=partial(_behind, model.patch_size))]

    def fixed_order(self, kwargs: Mapping[str, Any]) -> str:
        time = kwargs["timestep"]
        return TIME_PER_TOKEN if time.dim() > 1 and time.shape[1] > 1 else ""


def _grid(patch: tuple[int, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    frames, *sides = kwargs["x"].shape[-3:]
    more = kwargs.get("time_dim_concat")
    frames += 0 if more is None else more.shape[-3]
    return tuple(-(-length // side) for length, side in zip((frames, *sides), patch, strict=True))


def _behind(patch: tuple[int, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return sum(prod(_grid(patch, (), {"x": latent})) for latent in kwargs.get("context_latents") or ())
