"""Which kernels a call of a model launches, and the work of each, recorded on the meta device without computing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

F = torch.nn.functional


class Work(Enum):
    """What limits a kernel, besides memory."""

    PRODUCT = "product"  # matrix products and convolutions
    ATTENTION = "attention"  # flash attention: no mask
    MASKED_ATTENTION = "masked attention"  # the memory-efficient kernel, because flash attention takes no mask
    MEMORY = "memory"  # everything else moves data


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    name: str
    work: Work
    flops: int
    bytes: int
    outputs: int = 0  # elements that a product computes, which decides how many multiprocessors it keeps busy
    used: float = 1.0  # share of the channels it computes with that are not filled up with zeros


# Channels of a head that flash kernels are made for: others are filled up with zeros.
FLASH_CHANNELS = (32, 64, 96, 128, 192, 256)
FLASH = torch.ops.aten._scaled_dot_product_flash_attention

# Launch nothing: allocations, and answers that the host has.
_NO_KERNEL = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh",
    "_local_scalar_dense", "is_same_size", "sym_size", "sym_stride", "sym_numel", "resize_", "_unsafe_view",
}  # fmt: skip
# One kernel on a GPU, many operations on the meta device.
_FUSED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.rms_norm: lambda input, *args, **kwargs: torch.empty_like(input),
    torch.rms_norm: lambda input, *args, **kwargs: torch.empty_like(input),
}


def record(call: Callable[[], object]) -> list[Kernel]:
    """The kernels of a call on the meta device, in order."""
    kernels: list[Kernel] = []
    with torch.no_grad(), _FusedKernels(kernels), _Kernels(kernels):
        call()
    return kernels


def attention_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Kernel:
    """One fused attention over (..., Q, D), (..., K, D) and (..., K, E).

    >>> meta = torch.empty(1, 2, 8, 4, device="meta")
    >>> attention_kernel(meta, meta, meta, None).flops == 2 * (2 * 8 * 8 * 4) * 2
    True
    """
    queries, width = query.shape[-2:]
    keys, out_width = value.shape[-2:]
    flops = 2 * math.prod(query.shape[:-2]) * queries * keys * (width + out_width)
    output = query.numel() // width * out_width * query.element_size()
    moved = output + sum(_bytes(tensor) for tensor in (query, key, value, mask) if tensor is not None)
    work = Work.ATTENTION if mask is None else Work.MASKED_ATTENTION
    made_for = next((channels for channels in FLASH_CHANNELS if channels >= width), width)
    used = width / made_for if mask is None else 1.0
    # Flash attention splits its work over batch, heads and queries.
    return Kernel("attention", work, flops, moved, outputs=query.numel(), used=used)


class _FusedKernels(TorchFunctionMode):
    """Notes functions that a GPU runs as one kernel, and answers with an empty tensor of the right shape."""

    def __init__(self, kernels: list[Kernel]) -> None:
        super().__init__()
        self._kernels = kernels

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in _FUSED:
            with _Unrecorded(self._kernels):
                output = _FUSED[func](*args, **kwargs)
            self._kernels.append(Kernel(func.__name__, Work.MEMORY, 0, 2 * _bytes(output)))
            return output
        return func(*args, **kwargs)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        self._kernels.append(attention_kernel(query, key, value, attn_mask))
        with _Unrecorded(self._kernels):
            return query.new_empty((*query.shape[:-1], value.shape[-1]))


class _Unrecorded:
    """Forgets what was recorded inside."""

    def __init__(self, kernels: list[Kernel]) -> None:
        self._kernels = kernels

    def __enter__(self) -> None:
        self._before = len(self._kernels)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del self._kernels[self._before :]


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that launches a kernel."""

    def __init__(self, kernels: list[Kernel]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        kernel = _kernel(func, args, kwargs, output)
        if kernel is not None:
            self._kernels.append(kernel)
        return output


def launches_kernel(func: Any, output: Any) -> bool:
    """Whether an operator with this output launches a kernel: no view, no allocation, and not on the host."""
    results = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    is_free = func.is_view or func.overloadpacket.__name__ in _NO_KERNEL
    return not is_free and any(result.is_meta for result in results)


def _kernel(func: Any, args: Any, kwargs: Any, output: Any) -> Kernel | None:
    if not launches_kernel(func, output):
        return None
    name = func.overloadpacket.__name__
    if func.overloadpacket is FLASH:
        query, key, value = args[:3]
        return attention_kernel(query, key, value, None)
    results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    moved = sum(map(_bytes, {id(tensor): tensor for tensor in (*inputs, *results)}.values()))
    count = flop_registry.get(func.overloadpacket)
    if count is None:
        return Kernel(name, Work.MEMORY, 0, moved)
    return Kernel(name, Work.PRODUCT, int(count(*args, **kwargs, out_val=output)), moved, results[0].numel())


def _bytes(tensor: Tensor) -> int:
    """Bytes of memory behind a tensor: what is expanded is read once."""
    lengths = (length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(lengths) * tensor.element_size()
