"""The tokens in what a module is called with and in what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.arguments import Args, Kwargs, argument_names, given_argument, with_argument
from tokenmerge.models.base import Block, Part

Pieces = tuple[Tensor | None, Tensor, Tensor | None]


def joined(*pieces: Tensor | None) -> Tensor:
    """The pieces that are there, one behind the other."""
    present = [piece for piece in pieces if piece is not None]
    return present[0] if len(present) == 1 else torch.cat(present, dim=1)


def split_pieces(tokens: Tensor, count: int, trailing: int, text_last: bool) -> Pieces:
    """Tokens before those of the grid, the `count` of the grid, and those behind; None where there are none."""
    others = tokens.shape[1] - count
    if others == 0:
        return None, tokens, None
    behind = others if text_last else trailing
    pieces = torch.split(tokens, [others - behind, count, behind], dim=1)
    return pieces[0] if others > behind else None, pieces[1], pieces[2] if behind else None


@dataclass(frozen=True)
class TokenArgument:
    """The argument of a module that holds tokens, and whether as (B, L, C) or as (B, C, H, W)."""

    names: tuple[str, ...] = ()  # of the module's positional arguments
    name: str = ""  # of the one with tokens; the first if empty
    channels_first: bool = False
    tokens_first: bool = False  # (L, B, C)

    def given(self, args: Args, kwargs: Kwargs) -> Tensor:
        """The argument as it is."""
        if args and not self.name:
            given: Tensor = args[0]
            return given
        return given_argument(self.names, args, kwargs, self._name_in(kwargs))  # type: ignore[no-any-return]

    def read(self, args: Args, kwargs: Kwargs) -> Tensor:
        """(B, L, C)"""
        return self.as_tokens(self.given(args, kwargs))

    def write(self, args: Args, kwargs: Kwargs, tokens: Tensor, grid: tuple[int, ...] = ()) -> tuple[Args, Kwargs]:
        """The arguments of a call with other tokens."""
        value = self.as_given(tokens, self.given(args, kwargs).dim(), grid)
        if args and not self.name:
            return (value, *args[1:]), kwargs
        return with_argument(self.names, args, kwargs, self._name_in(kwargs), value)

    def as_tokens(self, given: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H * W, C), or what already is in that form."""
        if self.tokens_first:
            return given.transpose(0, 1)
        return given.flatten(2).transpose(1, 2) if self.channels_first else given

    def as_given(self, tokens: Tensor, dimensions: int, grid: tuple[int, ...]) -> Tensor:
        """(B, L, C) in the form that the module takes: fewer tokens than the grid has stand in one column."""
        if not self.channels_first:
            return tokens.transpose(0, 1) if self.tokens_first else tokens
        channels = tokens.transpose(1, 2)
        if dimensions == 3:
            return channels
        whole = tokens.shape[1] == math.prod(grid)
        return channels.reshape(*channels.shape[:2], *(grid if whole else (-1, *[1] * (dimensions - 3))))

    def _name_in(self, kwargs: Kwargs) -> str:
        if self.name:
            return self.name
        return self.names[0] if self.names and self.names[0] in kwargs else "hidden_states"


def token_argument(block: Block, part: Part | None = None) -> TokenArgument:
    """Where tokens stand in the arguments of a block, or of the module at which one of its parts begins."""
    path = "" if part is None else part.module
    name = part.argument if part is not None and path else block.argument
    names = () if path else block.arguments
    names = names or argument_names(block.module.get_submodule(path))
    form = block.form_of(part)
    return TokenArgument(names, name, form.channels_first, form.tokens_first)


def with_changed(output: Any, positions: tuple[int | None, ...], change: Callable[[Tensor, int], Tensor]) -> Any:
    """A module's output with its tokens changed: all of it, or the items at `positions` of a tuple.

    change: called with tokens and their position, 0 for an output that is no tuple.
    """
    if isinstance(output, Tensor):
        return change(output, 0)
    return tuple(change(item, index) if index in positions else item for index, item in enumerate(output))


def as_one(given: Any) -> Any:
    """The noisy input of a call as one tensor, (B, ...): some models take a list with a tensor for each sample."""
    if not isinstance(given, list) or not all(isinstance(image, Tensor) for image in given):
        return given
    shapes = [tuple(image.shape) for image in given]
    if len(set(shapes)) > 1:
        raise MergeRuntimeError(
            f"the model was called with images of different sizes, {' and '.join(map(str, dict.fromkeys(shapes)))}, "
            f"which merging needs one plan each for: pass images of one size in a call."
        )
    return torch.stack(given) if given else torch.empty(0)


def refuse_empty(given: Any) -> None:
    """No model makes anything of no samples or no tokens, and each says so in its own way, none of them clear."""
    if isinstance(given, Tensor) and given.numel() == 0:
        raise MergeRuntimeError(
            f"the model was called with an input of shape {tuple(given.shape)}, which is empty: give at least one "
            f"sample, and one token."
        )


def shapes_of_call(
    names: tuple[str, ...], by_value: tuple[str, ...], timestep: str, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """A call's arguments as empty tensors of the same shapes, but for those from whose values the grid is read."""
    shapes: tuple[Args, Kwargs] = tree_map_only(Tensor, partial(torch.empty_like, device="meta"), (args, kwargs))
    for name in by_value:
        value = given_argument(names, args, kwargs, name)
        if value is not None:
            shapes = with_argument(names, *shapes, name, value)
    if isinstance(given_argument(names, *shapes, timestep), int | float):
        # As a number it would be read, and every call with it be the same step.
        shapes = with_argument(names, *shapes, timestep, torch.empty((), device="meta"))
    return shapes
