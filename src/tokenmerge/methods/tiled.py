"""What methods with tiles share."""

from __future__ import annotations

import math

from tokenmerge.config.interfaces import CannotMerge
from tokenmerge.errors import ConfigError


def tile_on(grid: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    """The tile with as many axes as the grid: a flat one is one frame deep; on an image a deep one has no frames.

    It is no deeper than there are frames, and one token high on one row of tokens, which is how a sequence is given.
    Raises ConfigError if it is larger than the grid otherwise.

    >>> tile_on((16, 32, 32), (4, 4)), tile_on((32, 32), (2, 4, 4)), tile_on((1, 288), (4, 4))
    ((1, 4, 4), (4, 4), (1, 4))
    """
    tile = (*[1] * (len(grid) - len(tile)), *tile)[-len(grid) :]
    *frames, height, width = zip(tile, grid, strict=True)
    tile = (*(min(pair) for pair in frames), 1 if height[1] == 1 else height[0], width[0])
    if any(side > length for side, length in zip(tile, grid, strict=True)):
        raise ConfigError(
            f"tile {by(tile)} is larger than the {by(grid)} grid of tokens: use a tile of at most {by(grid)}, or "
            f"min_tokens={math.prod(grid) + 1} to leave that level alone."
        )
    return tile


def refuse_white_mask(grid: tuple[int, ...], protected: tuple[int, ...]) -> None:
    if len(protected) == math.prod(grid):
        raise CannotMerge("keep is white everywhere here, so nothing is left to merge")


def by(sides: tuple[int, ...]) -> str:
    """The sides of a grid or a tile, as text."""
    return " x ".join(map(str, sides))
