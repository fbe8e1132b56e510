"""Z-Image and Z-Image Turbo: `ZImageTransformer2DModel`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Call, Family, Part, Rotary, Stack, blocks_of, new_like, rows_at, signature_of
from tokenmerge.models.builders import first

PARTS = (Part(("self",), "attention", mask="4d", text="first"), Part(("mlp",), "feed_forward", text="first"))
ROTARY = Rotary("freqs_cis", rows_at, per_sample=True)


class ZImageFamily(Family):
    """The image refined alone, then with its text behind it; both are padded to a multiple of 32 tokens."""

    name = "Z-Image"
    class_name = "ZImageTransformer2DModel"
    latent = "x"
    timestep = "t"
    timestep_rises = True
    conditions = ("cap_feats",)
    between_blocks = ("controlnet_block_samples",)

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [
            Stack(name, name, model, _grid, blocks_of(model, name, PARTS, rotary=ROTARY), starts=first)
            for name in ("noise_refiner", "layers")
        ]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        if isinstance(kwargs["x"][0], list):
            raise MergeRuntimeError(
                "Z-Image was called with several images a sample (omni mode), whose tokens merging cannot tell apart: "
                "take merging out with handle.remove()."
            )
        return super().read_call(args, kwargs)

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        images = kwargs["x"]
        return len(images), signature_of(images[0])

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        rows, columns = size[0] // self.pixels, size[1] // self.pixels
        # 512 is the length of the longest prompt that pipelines allow by default.
        return {
            "x": list(torch.randn(batch, config.in_channels, 1, rows, columns, **new)),
            "t": torch.full((batch,), 0.5, **new),
            "cap_feats": list(torch.randn(batch, 512, config.cap_feat_dim, **new)),
        }


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    side, length = kwargs.get("patch_size", 2), kwargs.get("f_patch_size", 1)
    frames, rows, columns = kwargs["x"][0].shape[-3:]
    grid = frames // length, rows // side, columns // side
    return grid[1:] if grid[0] == 1 else grid
