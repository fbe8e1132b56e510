"""Values of tensors on the host."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def read_back(tensor: Tensor) -> Any:
    """The values of a tensor as numbers. On a GPU the host waits here, and nowhere else in merging.

    At most a few times a generation, never at every step (tests/engine/test_no_waiting.py).
    """
    return tensor.tolist()
