"""What many families have in common, so that each of their files says what is its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Block, Call, Family, Stack, blocks_of, new_like, patch_grid, signature_of

__all__ = ["LatentFamily", "blocks_of", "first"]


def first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """For `Stack.starts`: the image stands before everything else."""
    return (0,)


class LatentFamily(Family):
    """Models whose `hidden_states` are a latent, (B, C, H, W): one token is made of each patch of it."""

    def stack(self, model: nn.Module, name: str, blocks: tuple[Block, ...], **more: Any) -> Stack:
        """Blocks on the patches of the latent. more: as in `Stack`."""
        return Stack(name, name, model, partial(patch_grid, self.patch(model)), blocks, **more)

    def patch(self, model: nn.Module) -> int | tuple[int, ...]:
        """Latents to a token, a side."""
        config: Any = model.config
        patch: int | tuple[int, ...] = config.patch_size
        return patch if isinstance(patch, int) else tuple(patch)

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        interleaved = kwargs.get("controlnet_block_samples") is not None
        return Call(self.timestep_of(kwargs), signature_of(kwargs["hidden_states"]), interleaved=interleaved)

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, C, H, W): noise for an image of height x width pixels."""
        config: Any = model.config
        rows, columns = size[0] // self.pixels, size[1] // self.pixels
        return torch.randn(batch, config.in_channels, rows, columns, **new_like(model))

    def noise(self, model: nn.Module, batch: int, *shape: int) -> Tensor:
        """(B, *shape): values for any other input, such as a text's embeddings."""
        return torch.randn(batch, *shape, **new_like(model))

    def times(self, model: nn.Module, batch: int, value: float) -> Tensor:
        """(B,): a timestep, or another number for each sample."""
        return torch.full((batch,), value, **new_like(model))
