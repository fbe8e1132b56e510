"""What many families have in common, so that each of their files says what is its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.arguments import argument_of
from tokenmerge.models.base import TIME_PER_TOKEN, Block, Call, Family, Part, Rotary, Stack, blocks_of, new_like


def first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """For `Stack.starts`: the image stands before everything else."""
    return (0,)


@dataclass(frozen=True)
class Run:
    """The blocks that a model holds in a list called `name`. The rest is as in `blocks_of`."""

    name: str
    parts: tuple[Part, ...] | Callable[[Any], tuple[Part, ...]]
    output: int | None = None
    rotary: Rotary | None = None
    tokens_first: bool = False

    def blocks(self, model: nn.Module) -> tuple[Block, ...]:
        return blocks_of(model, self.name, self.parts, self.output, self.rotary, tokens_first=self.tokens_first)


class LatentFamily(Family):
    """Models whose `hidden_states` are a latent, (B, C, H, W) or (B, C, F, H, W): a token is made of each patch of it.

    One that is more than its attributes say fills in `stacks`, or adds to `example_inputs`.
    """

    runs: tuple[Run, ...] = ()  # its blocks, which are one stack
    fixed_order = ""  # as in `Stack`
    refused = ""  # an argument with which merging cannot work
    refused_because = ""  # a sentence
    between_blocks: tuple[str, ...] = ("controlnet_block_samples",)
    grid_axes: tuple[int, ...] = ()  # of the latent, that the grid is made of; the last ones if empty
    # Of a call for counting: latent frames of the usual video, timestep, and the size of each sample's
    # `encoder_hidden_states`: how many tokens, and channels of each. A name is that of an entry of the model's
    # configuration.
    frames = 0
    time = 500.0
    text: tuple[int | str, ...] = ()
    text_mask = ""  # the argument that says which of those tokens are no padding
    # Other arguments of this kind, each a name and its size; left out if the configuration has None for it.
    embeddings: tuple[tuple[int | str, ...], ...] = ()
    guidance = 0.0  # if the configuration has `guidance_embeds`

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, *self.runs)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        if self.refused and kwargs.get(self.refused) is not None:
            raise MergeRuntimeError(self.refused_because)
        call = super().read_call(args, kwargs)
        return replace(call, fixed_order=TIME_PER_TOKEN) if self.has_time_per_token(kwargs) else call

    def has_time_per_token(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call gives tokens timesteps of their own."""
        return False

    def stack(self, model: nn.Module, *runs: Run, **more: Any) -> Stack:
        """A stack of these blocks on the patches of the latent. more: as in `Stack`."""
        name = runs[0].name if len(runs) == 1 else "blocks"
        blocks = tuple(block for run in runs for block in run.blocks(model))
        return Stack(name, name, model, self.grid_of(model), blocks, **{"fixed_order": self.fixed_order, **more})

    def grid_of(self, model: nn.Module) -> Callable[[Sequence[Any], Mapping[str, Any]], tuple[int, ...]]:
        """As in `Stack.grid`."""
        config: Any = model.config
        patch = config.patch_size
        if isinstance(patch, int):
            patch = (getattr(config, "patch_size_t", None) or 1, patch, patch) if self.video else (patch, patch)
        return partial(_grid, self.latent, self.grid_axes or tuple(range(-len(patch), 0)), tuple(patch))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        inputs = {self.latent: self.latents(model, size, batch), self.timestep: self.times(model, batch, self.time)}
        texts = (("encoder_hidden_states", *self.text),) if self.text else ()
        for name, *size_of in (*texts, *self.embeddings):
            shape = [getattr(config, side) if isinstance(side, str) else side for side in size_of]
            if None not in shape:
                inputs[str(name)] = self.noise(model, batch, *shape)
        if self.text_mask:
            tokens = inputs["encoder_hidden_states"]
            inputs[self.text_mask] = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        if self.guidance and getattr(config, "guidance_embeds", False):
            inputs["guidance"] = self.times(model, batch, self.guidance)
        return inputs

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, C, H, W), or (B, C, F, H, W): noise for an image of height x width pixels."""
        config: Any = model.config
        frames = (self.frames,) if self.frames else ()
        rows, columns = size[0] // self.pixels, size[1] // self.pixels
        return self.noise(model, batch, config.in_channels, *frames, rows, columns)

    def noise(self, model: nn.Module, batch: int, *shape: int) -> Tensor:
        """(B, *shape): values for any other input, such as a text's embeddings."""
        return torch.randn(batch, *shape, **new_like(model))

    def times(self, model: nn.Module, batch: int, value: float) -> Tensor:
        """(B,): a timestep, or another number for each sample."""
        return torch.full((batch,), value, **new_like(model))


def _grid(
    latent: str, axes: Sequence[int], patch: tuple[int, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int, ...]:
    shape = argument_of(kwargs, latent, "the family's latent").shape
    return tuple(shape[axis] // length for axis, length in zip(axes, patch, strict=True))


class PackedFamily(LatentFamily):
    """Models whose `hidden_states` are tokens already, (B, N, C), so that another argument tells their grid."""

    between_blocks: tuple[str, ...] = ()
    time = 0.5
    token_pixels = 16  # of the image, a side, to a token

    def grid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """As in `Stack.grid`."""
        raise NotImplementedError

    def behind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """As in `Stack.trailing`: those of `hidden_states` that are not of the grid."""
        tokens: int = kwargs["hidden_states"].shape[1]
        return tokens - math.prod(self.grid(args, kwargs))

    def grid_of(self, model: nn.Module) -> Callable[[Sequence[Any], Mapping[str, Any]], tuple[int, ...]]:
        return self.grid

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        return super().signature(kwargs), self.grid((), kwargs)

    def example_grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens in an image of height x width pixels."""
        return size[0] // self.token_pixels, size[1] // self.token_pixels

    def latents(self, model: nn.Module, size: tuple[int, int], batch: int) -> Tensor:
        """(B, N, C)"""
        channels: Any = model.config.in_channels  # type: ignore[union-attr]
        return self.noise(model, batch, (self.frames or 1) * math.prod(self.example_grid(size)), channels)
