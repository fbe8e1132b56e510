"""Models whose code asks a mask for its values, on the meta device, where it has none: every mask there is True."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

INVERSIONS = (Tensor.__invert__, Tensor.bitwise_not, Tensor.logical_not, torch.bitwise_not, torch.logical_not)


class MasksAreTrue(TorchFunctionMode):
    """On the meta device a mask selects everything, its inverse nothing, and a condition does not hold."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not given.is_meta:
            return func(*args, **kwargs)
        if func is torch.nonzero:
            return torch.empty(given.numel(), given.dim(), dtype=torch.long, device="meta")
        if func is Tensor.__bool__:
            return False
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool:
            mask = args[1]
            selected = 0 if getattr(mask, "selects_nothing", False) else mask.numel()
            return given.new_empty(selected, *given.shape[mask.dim() :])
        result = func(*args, **kwargs)
        if func in INVERSIONS and given.dtype == torch.bool:
            result.selects_nothing = True
        return result


def let_masks_be_true(model: nn.Module) -> None:
    """Run a model on the meta device with every mask True."""
    kind: Any = type(model)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with MasksAreTrue():  # type: ignore[no-untyped-call]
            return kind.forward(self, *args, **kwargs)

    # A class of the same name and module: a forward on the model itself would be taken for a cache's.
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
