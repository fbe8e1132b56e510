"""Proportional attention where an attention takes no mask: PyTorch's own attention inside it is given the weights."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

ATTENTION = functional.scaled_dot_product_attention
CALL = nn.Module._call_impl.__code__


class WeighKeys(TorchFunctionMode):
    """While it is entered, attention over as many keys as there are weights gets them as a mask, beside its own.

    It is entered in one hook and left in another, for the length of one attention module's forward. An interrupt
    from the keyboard passes no hook on its way out, so weights are given only while that forward is running.
    """

    def __init__(self, weights: Tensor, attention: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = weights  # (B, 1, 1, keys)
        self.attention = attention
        self.used = False

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def leave_late(self) -> None:
        """Leave after an interrupt, when others may have been entered since, or this thread is another."""
        above = []
        if not any(mode is self for mode in _get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
            return
        while (mode := _pop_mode()) is not self:  # type: ignore[no-untyped-call]
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is ATTENTION:
            key = args[1] if len(args) > 1 else kwargs["key"]
            if key.shape[-2] == self.weights.shape[-1] and _is_called(self.attention):
                kwargs["attn_mask"] = self._beside(kwargs.get("attn_mask"))
                self.used = True
        if func is Tensor.unflatten:
            # It asks its super(), which torch.compile cannot follow from here; this is the same without.
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)

    def _beside(self, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.weights
        if mask.dtype == torch.bool:
            return self.weights.masked_fill(~mask, -math.inf)
        return self.weights + mask


def _is_called(module: nn.Module) -> bool:
    """Is the module's forward running, in this thread?"""
    if torch.compiler.is_compiling():
        return True  # what is compiled is what runs
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is CALL and frame.f_locals["self"] is module:
            return True
        frame = frame.f_back
    return False
