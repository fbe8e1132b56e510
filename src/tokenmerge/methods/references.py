"""Reference images of editing models: grids behind the image's, each with a layout, merged harder than the image.

What a model makes of a reference's tokens is never looked at: only the image reads them, as keys and values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operator, Operators
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.methods.sampled_keys import SampledKeys
from tokenmerge.methods.tile_mean import TileMean

# The tiles of a reference of which one token is kept, by the fraction that they merge away.
TILES: dict[float, tuple[int, int]] = {0.0: (1, 1), 0.5: (1, 2), 0.75: (2, 2), 0.875: (2, 4), 0.9375: (4, 4)}


def check_reference_ratio(ratio: Any) -> float:
    if isinstance(ratio, bool) or ratio not in TILES:
        raise ConfigError(
            f"reference_ratio is {ratio!r}: it is the fraction of a reference image's tokens merged away, one of "
            f"{', '.join(f'{known:g}' for known in TILES)}."
        )
    return float(ratio)


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinedLayout(Layout):
    """The layouts of an image and of the references behind it, as one."""

    pieces: tuple[Layout, ...]
    references_by: MergeConfig  # the method that merges references

    @property
    def tokens_of_references(self) -> int:
        return self.tokens - self.pieces[0].tokens

    @property
    def kept_of_references(self) -> int:
        """Of the keys, which are all that an image reads of them."""
        return self.kept_keys - self.pieces[0].kept_keys

    def to(self, device: torch.device) -> Self:
        return dataclasses.replace(self, pieces=tuple(piece.to(device) for piece in self.pieces))


@dataclass(frozen=True, eq=False)
class JoinedOperator:
    """Merges each grid of a sequence by itself."""

    pieces: tuple[Operator, ...]
    tokens: tuple[int, ...]  # of each grid
    kept: tuple[int, ...]
    mass: Tensor | None  # (B, M)
    destinations: Tensor | None  # (B, M)

    def merge(self, tokens: Tensor) -> Tensor:
        given = torch.split(tokens, [*self.tokens], dim=1)
        return torch.cat([piece.merge(each) for piece, each in zip(self.pieces, given, strict=True)], dim=1)

    def unmerge(self, tokens: Tensor) -> Tensor:
        given = torch.split(tokens, [*self.kept], dim=1)
        return torch.cat([piece.unmerge(each) for piece, each in zip(self.pieces, given, strict=True)], dim=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinedOperators(Operators):
    pieces: tuple[Operators, ...]  # one for each grid


def with_references(layout: Layout, config: MergeConfig, ratio: float, grids: Sequence[tuple[int, ...]]) -> Layout:
    """The layout of an image with those of its references behind it."""
    method = _method_for(config, TILES[ratio])
    pieces = (layout, *(_layout_of(method, grid, ratio) for grid in grids))
    each_for = {piece.tokens / piece.kept_keys for piece in pieces}
    return JoinedLayout(
        grid=layout.grid,
        tokens=sum(piece.tokens for piece in pieces),
        kept=sum(piece.kept for piece in pieces),
        kept_keys=sum(piece.kept_keys for piece in pieces),
        equal_mass=all(piece.equal_mass for piece in pieces) and len(each_for) == 1,
        fixed=all(piece.fixed for piece in pieces),
        pieces=pieces,
        references_by=method,
    )


def _layout_of(method: MergeConfig, grid: tuple[int, ...], ratio: float) -> Layout:
    try:
        return method.layout(grid)
    except (CannotMerge, ConfigError):
        raise MergeRuntimeError(
            f"reference_ratio={ratio:g} merges nothing in a reference image of {' x '.join(map(str, grid))} tokens: "
            f"leave reference_ratio out, or pass a larger reference."
        ) from None


def _method_for(config: MergeConfig, tile: tuple[int, int]) -> MergeConfig:
    """How references are merged if the method keeps all queries, and if it does not."""
    if not config.merges_queries:
        return SampledKeys(tile=tile)
    return TileMean(tile=tile, keys=config.keys, correction=None)


def plan_of(
    config: MergeConfig, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None
) -> Operators:
    """The operators of a config for the tokens of a layout, with references or without."""
    if not isinstance(layout, JoinedLayout):
        return config.plan(tokens, layout, context, previous)
    methods = (config, *[layout.references_by] * (len(layout.pieces) - 1))
    given = torch.split(tokens, [piece.tokens for piece in layout.pieces], dim=1)
    before = previous.pieces if isinstance(previous, JoinedOperators) else [None] * len(methods)
    planned = tuple(
        method.plan(each, piece, context, known)
        for method, each, piece, known in zip(methods, given, layout.pieces, before, strict=True)
    )
    queries = _joined([each.queries for each in planned], layout.pieces, [piece.kept for piece in layout.pieces])
    if all(each.keys is each.queries for each in planned):
        return JoinedOperators(queries, queries, pieces=planned)
    keys = _joined([each.keys for each in planned], layout.pieces, [piece.kept_keys for piece in layout.pieces])
    return JoinedOperators(queries, keys, pieces=planned)


def _joined(found: Sequence[Operator | None], layouts: Sequence[Layout], kept: list[int]) -> JoinedOperator | None:
    pieces = tuple(piece for piece in found if piece is not None)
    if not pieces:
        return None
    tokens = tuple(layout.tokens for layout in layouts)
    masses = [piece.mass for piece in pieces]
    places = [piece.destinations for piece in pieces]
    begins = accumulate(tokens[:-1], initial=0)
    moved = [None if each is None else each + begin for each, begin in zip(places, begins, strict=True)]
    return JoinedOperator(pieces, tokens, tuple(kept), _cat(masses), _cat(moved))


def _cat(found: Sequence[Tensor | None]) -> Tensor | None:
    known = [each for each in found if each is not None]
    return torch.cat(known, dim=1) if len(known) == len(found) else None
