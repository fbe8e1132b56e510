"""torch.compile around the turn of one contender."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from tokenmerge.benchmark.blocks import block_modules
from tokenmerge.benchmark.subject import Subject

Compile = Literal["blocks", "model"]


@contextmanager
def compiled(subject: Subject, how: Compile | None) -> Iterator[None]:
    """Compile the transformer blocks, or the whole model, for what is in it now; undone at the end.

    Compiled code does not notice hooks that come or go, so each turn starts from nothing; the graphs themselves are
    found again in torch's cache on disk.
    """
    if how is None:
        yield
        return
    modules: list[nn.Module]
    modules = [subject.model] if how == "model" else list(block_modules(subject.model, subject.family).values())
    torch.compiler.reset()
    try:
        for module in modules:
            module.compile()
        yield
    finally:
        for module in modules:
            module._compiled_call_impl = None
