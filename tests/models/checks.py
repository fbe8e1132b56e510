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
from torch.overrides import TorchFunctionMode

import tokenmerge as tm
from tokenmerge.engine.session import Session, session_of
from tokenmerge.methods.interfaces import Operators

# Small enough for the tiny models, and merging from the first block on.
SMALL: dict[str, Any] = {"min_tokens": 16, "skip_blocks": 0}
TILES = tm.ToMA(ratio=0.5, tile=(2, 2), **SMALL)
SCOPES = ("site", "block", "stack")


def since(release: str, what: str) -> pytest.MarkDecorator:
    """For tests of what older releases of diffusers lack."""
    return pytest.mark.skipif(Version(release) > DIFFUSERS, reason=f"diffusers {release} brought {what}")


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def session_on(model: nn.Module) -> Session:
    session = session_of(model)
    assert session is not None
    return session


def operators_on(model: nn.Module, stack: int = 0) -> Operators:
    """The operators that the first block of a stack used in the last call."""
    run = session_on(model).stacks[stack]
    operators = run.operators_of(run.described.merging[0])
    assert operators is not None
    return operators


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[int] = []
        self.both: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            key = args[1] if len(args) > 1 else kwargs["key"]
            query = args[0] if args else kwargs["query"]
            self.keys.append(key.shape[-2])
            self.both.append((query.shape[-2], key.shape[-2]))
        return func(*args, **kwargs)


@contextmanager
def key_lengths() -> Iterator[list[int]]:
    """How many keys each attention has read, as it ran: enter it outside of what makes them fewer."""
    with _Counting() as counting:
        yield counting.keys


@contextmanager
def attention_lengths() -> Iterator[list[tuple[int, int]]]:
    """How many queries each attention was asked, and how many keys it has read; the same goes for it."""
    with _Counting() as counting:
        yield counting.both


def part_lengths(model: nn.Module) -> set[int]:
    """How many tokens the parts ran on in the last call."""
    return set(session_on(model).tokens_seen.values())


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
