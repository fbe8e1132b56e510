"""torch.compile around the turn of one contender."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch._dynamo
from torch import nn

from tokenmerge.bench.blocks import block_modules
from tokenmerge.bench.subject import Subject
from tokenmerge.engine.compatibility import MOST_GRAPHS

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
    torch._dynamo.utils.counters.clear()
    try:
        for module in modules:
            module.compile()
        # Past the usual limit torch would go on without compiling, in silence: each block has a graph for each kind of
        # step, where hooks keep blocks from sharing one.
        with torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS, accumulated_recompile_limit=MOST_GRAPHS):
            yield
    finally:
        for module in modules:
            module._compiled_call_impl = None


def graphs_compiled() -> int:
    """How many graphs the turn has needed so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
