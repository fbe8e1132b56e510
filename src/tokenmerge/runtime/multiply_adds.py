"""The one counter of multiply-adds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode


def count_multiply_adds(call: Callable[[], object]) -> int:
    """Multiply-adds of every layer that a call of a model on the meta device runs.

    On the meta device attention is taken apart into the products it stands for. A fused kernel on a CPU goes uncounted.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops()) // 2
