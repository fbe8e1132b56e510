"""The peer itself: the `tomesd` package from PyPI, patched into a model and taken out without a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from tokenmerge.accelerations.base import Acceleration, Generation, require_package
from tokenmerge.api import denoisers_of
from tokenmerge.config.ratio import is_ratio
from tokenmerge.errors import ConfigError
from tokenmerge.models.base import is_a

# With its 2 x 2 cells the package cannot merge more, and caps the ratio there without saying so.
LARGEST_RATIO = 0.75


@dataclass(frozen=True)
class Tomesd(Acceleration):
    """The tomesd package with its options.

    Args:
        ratio: Fraction of the tokens merged away, at most 0.75.
        max_downsample: Levels of the UNet that are merged, by how much smaller they are: 1, 2, 4 or 8.
    """

    ratio: float = 0.5
    max_downsample: int = 1

    def __post_init__(self) -> None:
        require_package("tomesd", "tomesd")
        check_package_ratio(self.ratio)

    def settings(self) -> dict[str, Any]:
        return {"package": "tomesd", "ratio": self.ratio, "max_downsample": self.max_downsample}

    def misfit(self, pipe: Any) -> str | None:
        return why_not(denoisers_of(pipe)[0])

    @contextmanager
    def applied(self, pipe: Any, generation: Generation) -> Iterator[None]:
        with patched(denoisers_of(pipe)[0], self.ratio, self.max_downsample):
            yield


def check_package_ratio(ratio: object) -> None:
    if not is_ratio(ratio) or not 0 < ratio <= LARGEST_RATIO:  # type: ignore[operator]
        raise ConfigError(
            f"ratio is {ratio!r}, and the tomesd package merges at most {LARGEST_RATIO:g} (more it cuts down without "
            f"saying so): use a ratio above 0 and up to {LARGEST_RATIO:g}."
        )


def why_not(model: nn.Module) -> str | None:
    """Why the package cannot merge in this model; None where it can."""
    blocks = [module for module in model.modules() if is_a(module, "BasicTransformerBlock")]
    if not blocks:
        return "the tomesd package knows only models made of BasicTransformerBlock"
    if any(getattr(block, "norm_type", "layer_norm") != "layer_norm" for block in blocks):
        return "the tomesd package would run blocks with adaptive norms wrongly"
    return None


def reaching_downsample(latent_tokens: int, block_tokens: Iterable[int]) -> int:
    """The package's own max_downsample (1) where that merges anything, else the least that reaches every block.

    >>> reaching_downsample(4096, [4096, 1024, 256]), reaching_downsample(16384, [4096, 1024])
    (1, 4)
    """
    factors = {math.ceil(math.sqrt(latent_tokens // tokens)) for tokens in block_tokens}
    return 1 if 1 in factors else max(factors)


@contextmanager
def patched(model: nn.Module, ratio: float, max_downsample: int) -> Iterator[None]:
    """The model with the package's merging in it, all else at the package's defaults."""
    import tomesd

    try:
        tomesd.apply_patch(model, ratio=ratio, max_downsample=max_downsample)
        yield
    finally:
        tomesd.remove_patch(model)
        for module in model.modules():
            module.__dict__.pop("_tome_info", None)  # which its own removal leaves behind
