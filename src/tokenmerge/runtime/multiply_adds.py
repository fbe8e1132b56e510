"""The one counter of multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

# The fused attention of a CPU, which torch's table of formulas lacks.
ATTENTION_ON_A_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class MultiplyAdds:
    """Multiply-adds that were executed so far."""

    def __init__(self) -> None:
        self.total = 0


def count_multiply_adds(call: Callable[[], object]) -> int:
    """Multiply-adds of every layer that a call runs, on any device; on the meta device without computing anything."""
    with torch.no_grad(), _counter() as counter:
        call()
    return _executed(counter)


@contextmanager
def executed_in(models: Iterable[nn.Module]) -> Iterator[MultiplyAdds]:
    """Count what runs inside calls of these models, and nothing else of what happens meanwhile.

    What a cache or a skipped step leaves out is not executed and not counted. Slows the calls down, so
    nothing is timed meanwhile.
    """
    counted = MultiplyAdds()
    running: list[Any] = []

    def enter(*_: Any) -> None:
        running.append(_counter())
        running[-1].__enter__()

    def leave(*_: Any) -> None:
        counter = running.pop()
        counter.__exit__(None, None, None)
        counted.total += _executed(counter)

    handles = []
    try:
        for model in models:
            # Before all others, so that what hooks of others compute is counted.
            handles.append(model.register_forward_pre_hook(enter, prepend=True))
            handles.append(model.register_forward_hook(leave, always_call=True))
        yield counted
    finally:
        for handle in handles:
            handle.remove()


class _NoModules:
    """Instead of torch's own tracker, which never ends in a model that some block holds as a submodule (cache-dit)."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Counter(FlopCounterMode):
    """Without the fused forms of TransformerEncoderLayer and MultiheadAttention, which have no formula."""

    def __enter__(self) -> _Counter:
        self._fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.backends.mha.set_fastpath_enabled(self._fused)
        super().__exit__(*error)  # type: ignore[no-untyped-call]


def _counter() -> FlopCounterMode:
    counter = _Counter(display=False, custom_mapping={ATTENTION_ON_A_CPU: _attention})
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    return counter


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """From the shapes (batch, heads, tokens, channels) of the three."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _executed(counter: FlopCounterMode) -> int:
    return int(counter.get_total_flops()) // 2
