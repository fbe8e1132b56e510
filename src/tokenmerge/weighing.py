"""Proportional attention where an attention takes no mask: PyTorch's own attention inside it is given the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

ATTENTION = functional.scaled_dot_product_attention


class WeighKeys(TorchFunctionMode):
    """While it is entered, attention over as many keys as there are weights gets them as a mask, beside its own.

    It is entered in one hook and left in another, for the length of one attention module's forward.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = weights  # (B, 1, 1, keys)
        self.used = False

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is ATTENTION:
            key = args[1] if len(args) > 1 else kwargs["key"]
            if key.shape[-2] == self.weights.shape[-1]:
                kwargs["attn_mask"] = self._beside(kwargs.get("attn_mask"))
                self.used = True
        return func(*args, **kwargs)

    def _beside(self, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.weights
        if mask.dtype == torch.bool:
            return self.weights.masked_fill(~mask, -math.inf)
        return self.weights + mask
