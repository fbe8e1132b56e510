"""What passes between methods and hooks: a method makes a layout of a grid, and operators of its tokens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from tokenmerge.ops.regions import Regions


class CannotMerge(Exception):
    """Raised by `layout` for a grid on which the method has nothing to do; the text is the reason."""


class Operator(Protocol):
    """Shortens a sequence of tokens and lengthens it again. Holds tensors and plain numbers, so it can be traced.

    One that can unmerge without edges between regions, for tokens to which detail is added, has that as `spread`.
    """

    @property
    def mass(self) -> Tensor | None:
        """(B, M): how many tokens each kept one stands for; None where that is not known."""

    @property
    def destinations(self) -> Tensor | None:
        """(B, M): which token each kept one sits at, for position embeddings; None where it sits nowhere."""

    def merge(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, M, C)."""

    def unmerge(self, tokens: Tensor) -> Tensor:
        """(B, M, C) -> (B, N, C)."""


@dataclass(frozen=True, eq=False)
class Operators:
    """What a plan holds for one group of blocks."""

    queries: Operator | None  # None: queries keep every token
    keys: Operator | None  # for keys and values of self-attention; the same object as `queries` where they agree
    picks: Tensor | None = None  # the method's own note of its destinations, given back when only weights are new

    @property
    def keys_apart(self) -> bool:
        """Are keys merged otherwise than the tokens that queries are made of?"""
        return self.keys is not self.queries


@dataclass(frozen=True, eq=False)
class Layout:
    """What a method makes of a grid, before it sees a token."""

    grid: tuple[int, ...]
    tokens: int  # N
    kept: int  # queries (and everything else) after merging
    kept_keys: int  # keys and values of self-attention after merging
    regions: Regions | None = None  # where set, a stack may bring its tokens into this order once, and back once
    even: bool = False  # every kept key stands for as many tokens, so that among themselves they need no weights
    kept_of_each: int = 0  # tokens kept of each region, one region's after the other's; 0 where that is not so
    tiles: tuple[int, ...] | None = None  # how many along each axis, where one token is kept of every tile

    def to(self, device: torch.device) -> Self:
        """The same layout with its tensors on `device`."""
        return self if self.regions is None else dataclasses.replace(self, regions=self.regions.to(device))


@dataclass(frozen=True, eq=False)
class BlockContext:
    """The block for which a plan is made."""

    name: str
    index: int  # its number among all blocks of the model
    count: int  # how many there are
    in_region_order: bool = False  # tokens come in the order of `Layout.regions` already
    one_for_batch: bool = False  # all samples must keep the same tokens (rotary embeddings without a batch axis)
    keys_of_all: bool = False  # keys merged apart are of all tokens, and not of those that are left after merging
    averages: bool = False  # tiles of which one token is left are averaged, without a look at what they hold
    draw: Tensor | None = None  # () the step, for methods that draw tokens anew at each (see `MergeConfig.redraws`)
