"""Values of tensors on the host, and whether they have changed."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def changes_of(value: Any) -> int | None:
    """How often a tensor was changed in place; None for other values, and in inference mode, which does not count."""
    return None if not isinstance(value, Tensor) or value.is_inference() else value._version


def read_back(tensor: Tensor) -> Any:
    """The values of a tensor as numbers. On a GPU the host waits here, and nowhere else in merging.

    At most a few times a generation, never at every step (tests/engine/test_no_waiting.py).
    """
    return tensor.tolist()
