"""What the tiny models share: how they are made and called, and inputs that are the same each time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from tokenmerge.models.position_ids import image_ids

Grid = tuple[int, ...]
DIFFUSERS = Version(version("diffusers"))


@dataclass(frozen=True)
class TinyModel:
    """A model and how to call it on a grid of tokens."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[Sequence[int], Grid], dict[str, Any]]  # (one seed per sample, grid)
    text: int = 0  # tokens of text in joint attention
    returns_text: bool = False  # does its output have the tokens of text, in front?
    context: int = 0  # keys of attention to text and image, where they are more than the tokens of the grid
    video: bool = False
    scopes: tuple[str, ...] = ("site", "block", "stack")
    merges_keys: bool = True  # does it have self-attention that runs on merged tokens?
    own_keys: bool = False  # whether keys can be merged separately from queries
    separate_keys: bool = True  # can its attention read fewer keys than it has queries?
    double: bool = True  # does it run in double precision?
    read_elsewhere: tuple[str, ...] = ()  # scopes in which attention that no part holds reads all of its tokens
    makes_tokens: tuple[str, ...] = ()  # modules that give the tokens of the grid, by the last part of their names
    makes_positions: tuple[str, ...] = ()  # modules that give rotary embeddings, one row a token
    even: bool = False  # the model itself takes images alone whose sides are even
    square: bool = False  # the model itself takes square images alone
    timestep: str = "timestep"  # the argument that tells the step
    timestep_rises: bool = False
    timestep_logarithmic: bool = False  # the model is given log(sigma) / 4
    since: str = "0.35"  # the first release of diffusers that has it

    def grid(self, height: int, width: int) -> Grid:
        width = height if self.square else width
        if self.even:
            height, width = height + height % 2, width + width % 2
        return (2, height, width) if self.video else (height, width)

    def call(self, model: nn.Module, seeds: Sequence[int], grid: Grid, timestep: float = 0.5, **more: Any) -> Tensor:
        inputs = self.inputs(seeds, grid)
        inputs[self.timestep] = torch.full_like(inputs[self.timestep], self.timestep_given(timestep))
        return self.run(model, {**inputs, **more})

    def timestep_given(self, timestep: float) -> float:
        """The argument that says how much noise is left."""
        if self.timestep_logarithmic:
            return math.log(timestep) / 4
        return 1 - timestep if self.timestep_rises else timestep

    def run(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The model's output as one tensor."""
        with torch.no_grad():
            returned: Tensor | tuple[Any, ...] = model(**inputs, return_dict=False)
        output = returned if isinstance(returned, Tensor) else returned[0]  # Kandinsky returns it as it is
        return torch.stack(output) if isinstance(output, list) else output

    def __str__(self) -> str:
        return self.name


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """The model with weights large enough that every layer matters, the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1 and not name.endswith("pos_embed"):
                    weight.mul_(1.5)
    return model


def per_sample(seeds: Sequence[int], *shape: int, salt: int = 0) -> Tensor:
    """(len(seeds), *shape): each sample depends on its own seed alone."""
    made = [torch.randn(*shape, generator=torch.Generator().manual_seed(seed + 1000 * salt)) for seed in seeds]
    return torch.stack(made)


def prompt(seeds: Sequence[int], tokens: int = 5) -> Tensor:
    """(len(seeds), tokens, 12): the very same tensor for the same samples, as a pipeline passes at every step."""
    return _prompt(tuple(seeds), tokens)


@cache
def _prompt(seeds: tuple[int, ...], tokens: int) -> Tensor:
    return per_sample(seeds, tokens, 12, salt=1)


@cache
def places(axes: int, grid: Grid, references: Grid = (), image: float = 1.0) -> Tensor:
    """The ids of an image's tokens, and of a reference's behind them; the very same tensor each time."""
    ids = [image_ids(*grid, axes)]
    if references:
        ids.append(image_ids(*references, axes) + torch.tensor([image, *[0.0] * (axes - 1)]))
    return torch.cat(ids)


@cache
def no_places(*shape: int) -> Tensor:
    """The ids of text, which sits nowhere."""
    return torch.zeros(*shape)


def steps(seeds: Sequence[int]) -> Tensor:
    return torch.full((len(seeds),), 0.5)
