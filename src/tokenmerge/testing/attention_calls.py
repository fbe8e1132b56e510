"""Which modules of a model call PyTorch's attention: seen in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tokenmerge.ops.weighted_keys import ATTENTION


def calling_attention(model: nn.Module, inputs: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of those `modules` inside which scaled_dot_product_attention is called."""
    calls = _AttentionCalls()
    handles = []
    for name, module in modules.items():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: calls.enter(name)))
        handles.append(module.register_forward_hook(lambda *_: calls.leave(), always_call=True))
    try:
        with torch.no_grad(), calls:
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return list(calls.names)


class _AttentionCalls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running: list[str] = []
        self.names: dict[str, None] = {}  # a set that keeps its order

    def enter(self, name: str) -> None:
        self.running.append(name)

    def leave(self) -> None:
        self.running.pop()  # returned from a hook, the name would replace the module's output

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ATTENTION and self.running:
            self.names[self.running[-1]] = None
        return func(*args, **(kwargs or {}))
