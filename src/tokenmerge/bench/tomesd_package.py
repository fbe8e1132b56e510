"""The peer itself: the `tomesd` package from PyPI, patched into a model and taken out without a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from tokenmerge.errors import UsageError
from tokenmerge.models.base import is_a

# With its 2 x 2 cells the package cannot merge more, and caps the ratio there without saying so.
LARGEST_RATIO = 0.75


def require_tomesd() -> None:
    """Raise a sentence where the package is not installed."""
    try:
        import tomesd  # noqa: F401
    except ImportError:
        raise UsageError(
            "tomesd-package needs the tomesd package: install it with `pip install 'tokenmerge[bench]'`, or leave "
            "tomesd-package out of --methods."
        ) from None


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
