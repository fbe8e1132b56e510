"""Room for the graphs of compiled blocks.

`torch.compile` makes a graph for each kind of call it meets, and by default gives up after eight, counted over all
blocks of a class. Merging has several kinds of step (new destinations, new weights, neither, whole), and hooks of their
own keep blocks from sharing a graph: what compiles unmerged must not fail for being merged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import nn

MOST_GRAPHS = 1024


def make_room(modules: Iterable[nn.Module]) -> None:
    """Raise PyTorch's limits where one of the modules is compiled. They are never lowered."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or all(module._compiled_call_impl is None for module in modules):
        return
    limits = dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, MOST_GRAPHS)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, MOST_GRAPHS)
