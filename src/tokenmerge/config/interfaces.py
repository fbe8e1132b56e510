"""What passes between methods and hooks: a method makes a layout of a grid, and operators of its tokens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.ops.indexing import tokens_at
from tokenmerge.ops.regions import Regions


class CannotMerge(Exception):
    """Raised by `layout` for a grid on which the method has nothing to do; the text is the reason."""


class Operator(Protocol):
    """Shortens a sequence of tokens and lengthens it again. Holds tensors and plain numbers, so it can be traced."""

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
class SelectedKeys:
    """Reads some tokens as they are, for keys and values that are not merged like queries.

    An average of keys is shorter than each of them and attention to it flatter. One of them, weighted by how many it
    stands for, is what full attention would have seen there.
    """

    destinations: Tensor  # (B, M)
    mass: Tensor | None  # (B, M)
    owner: Tensor | None = None  # (N,) which of them stands for each token

    def merge(self, tokens: Tensor) -> Tensor:
        return tokens_at(tokens, self.destinations)

    def unmerge(self, tokens: Tensor) -> Tensor:
        """To each token what stands for it. No model needs it; the page shows it."""
        assert self.owner is not None
        return tokens.index_select(1, self.owner)


@dataclass(frozen=True, eq=False)
class Operators:
    """What a plan holds for one group of blocks."""

    queries: Operator | None  # None: queries keep every token
    keys: Operator | None  # for keys and values of self-attention; the same object as `queries` if they agree
    selected: Tensor | None = None  # the destinations as the method keeps them, passed back when only weights are new


def operators_for(keys: str, queries: Operator, selected: Tensor | None = None) -> Operators:
    """The operators of a method that merges queries, by the choice of `MergeConfig.keys`."""
    if keys == "merged":
        return Operators(queries, queries, selected)
    if keys == "all":
        return Operators(queries, None, selected)
    if queries.destinations is None:
        raise MergeRuntimeError(
            "keys is 'sampled', and this method keeps tokens that sit nowhere on the grid, so none of them can stand "
            "for a key: use keys='merged' or 'all'."
        )
    return Operators(queries, SelectedKeys(queries.destinations, queries.mass), selected)


@dataclass(frozen=True, eq=False)
class Layout:
    """What a method makes of a grid, before it sees a token."""

    grid: tuple[int, ...]
    tokens: int  # N
    kept: int  # queries (and everything else) after merging
    kept_keys: int  # keys and values of self-attention after merging
    regions: Regions | None = None  # if set, a stack may bring its tokens into this order once, and back once
    equal_mass: bool = False  # every kept key stands for as many tokens, so among themselves they need no weights
    fixed: bool = False  # plans depend on the grid alone: merged tokens stay comparable when a plan is refreshed

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
    seed: Tensor | None = None  # () the step, for methods that sample tokens (see `MergeConfig.resamples`)
