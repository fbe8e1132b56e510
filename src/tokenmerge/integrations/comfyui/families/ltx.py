"""LTX-Video in ComfyUI: `LTXVModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from tokenmerge.integrations.comfyui.families.base import ComfyFamily
from tokenmerge.models.base import TIME_PER_TOKEN, Part, Rotary, Stack, blocks_of, rows_at


def _turned(embedding: tuple[Tensor, bool], places: Tensor, tokens: int) -> tuple[Tensor, bool]:
    """(B, S, heads, D, 2, 2), and how its halves are laid out."""
    matrices, split = embedding
    return rows_at(matrices, places, tokens), split


PARTS = (
    Part(("self",), "attn1", mask="4d", mask_argument="mask"),
    Part(("cross",), "attn2"),
    Part(("mlp",), "ff"),
)
ROTARY = Rotary("pe", _turned, per_sample=True)


class ComfyLTXFamily(ComfyFamily):
    """Tokens of all frames in one sequence. Guiding frames stand behind them and stay whole."""

    name = "LTX-Video in ComfyUI"
    class_name = "LTXVModel"
    video = True

    def recognises(self, model: nn.Module) -> bool:
        """Not its relative that makes sound too: its blocks have two streams of tokens."""
        return type(model).__name__ == self.class_name and super().recognises(model)

    def stacks(self, model: Any) -> list[Stack]:
        blocks = blocks_of(model, "transformer_blocks", PARTS, rotary=ROTARY, in_place=True)
        return [Stack("blocks", "blocks", model, _grid, blocks, starts=_first)]

    def shape_of(self, kwargs: Mapping[str, Any]) -> Hashable:
        return _guides(kwargs)

    def fixed_order(self, kwargs: Mapping[str, Any]) -> str:
        time = kwargs["timestep"]
        return TIME_PER_TOKEN if time.dim() > 1 and time.shape[1] > 1 else ""


def _guides(kwargs: Mapping[str, Any]) -> int:
    """Tokens of guiding frames. Some of them may be left out before the blocks."""
    positions = kwargs.get("keyframe_idxs")
    return 0 if positions is None else int(positions.shape[2])


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    frames, rows, columns = kwargs["x"].shape[-3:]
    return frames - _guides(kwargs) // (rows * columns), rows, columns


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Where the grid begins, if it is not all there is."""
    return (0,) if _guides(kwargs) else ()
