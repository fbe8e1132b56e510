"""What several tests of models look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from packaging.version import Version
from tiny_models import DIFFUSERS
from torch import Tensor, nn
from torch.nn import functional

import tokenmerge as tm
from tokenmerge.root import RootSite, root_site_of

# Small enough for the tiny models, and merging from the first block on.
SMALL: dict[str, Any] = {"min_tokens": 16, "skip_blocks": 0}
TILES = tm.ToMA(ratio=0.5, tile=(2, 2), detail_every=0, **SMALL)
SCOPES = ("site", "block", "stack")


def since(release: str, what: str) -> pytest.MarkDecorator:
    """For tests of what older releases of diffusers lack."""
    return pytest.mark.skipif(Version(release) > DIFFUSERS, reason=f"diffusers {release} brought {what}")


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def root_of(model: nn.Module) -> RootSite:
    root = root_site_of(model)
    assert root is not None
    return root


@contextmanager
def key_lengths() -> Iterator[list[int]]:
    """How many keys each attention has seen, as it ran."""
    seen: list[int] = []
    original = functional.scaled_dot_product_attention

    def counting(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(key.shape[-2])
        return original(query, key, *args, **kwargs)

    functional.scaled_dot_product_attention = counting
    try:
        yield seen
    finally:
        functional.scaled_dot_product_attention = original


def part_lengths(model: nn.Module) -> set[int]:
    """How many tokens the parts ran on in the last call."""
    root = root_of(model)
    return {part.seen for stack in root.stacks for block in stack.blocks for part in block.parts if part.seen}


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
