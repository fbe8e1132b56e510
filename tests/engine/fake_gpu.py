"""A CUDA device without one: tensors have shapes, types and a device, but no values.

Under `FakeTensorMode` whatever would need a value raises: `.item()`, `.tolist()`, `nonzero`, a branch on a tensor.
Those are what makes the host wait for a GPU. Copies between host and device wait too, and are refused here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

CUDA = torch.device("cuda:0")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class HostWaits(AssertionError):
    """Something that makes the host wait for the device."""


# One for all tests: tensors that the package caches by device are of this mode.
MODE = FakeTensorMode(allow_non_fake_inputs=True)  # some models hold plain tensors, which they move to the device


class FakeGpu:
    """Makes tensors and models that seem to be on a GPU, and runs code on them."""

    def __init__(self) -> None:
        self._values: dict[int, Tensor] = {}  # by storage: what may be read back
        self._made: list[tuple[Tensor, Tensor]] = []
        self.reads = 0

    def tensor(self, real: Tensor) -> Tensor:
        return FakeTensor(MODE, torch.empty_like(real, device="meta"), CUDA)

    def readable(self, real: Tensor) -> Tensor:
        """A tensor whose values `read_back` gives, of the whole of it."""
        fake = self.tensor(real)
        self._values[fake.untyped_storage()._cdata] = real
        return fake

    def read_back(self, tensor: Tensor) -> Any:
        """In place of `tokenmerge.ops.host.read_back`."""
        if not isinstance(tensor, FakeTensor):
            return tensor.tolist()  # on the host
        self.reads += 1
        known = self._values.get(tensor.untyped_storage()._cdata)
        if known is None:
            raise HostWaits("values are read from the device")
        return known.tolist()

    def on_device(self, values: Any) -> Any:
        """Every tensor in a nest of containers, on the device."""
        return tree_map(lambda value: self._moved(value) if isinstance(value, Tensor) else value, values)

    def _moved(self, real: Tensor) -> Tensor:
        self._made.append((self.tensor(real), real))
        return self._made[-1][0]

    def real(self, fake: Tensor) -> Tensor:
        """What a tensor of `on_device` was made of."""
        return next(real for made, real in self._made if made is fake)

    def model(self, model: nn.Module) -> nn.Module:
        """The model with weights and buffers on the device; in place."""
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = nn.Parameter(self.tensor(weight.detach()), requires_grad=False)
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else self.tensor(buffer)
        return model

    @contextmanager
    def running(self, watch: bool = True) -> Iterator[None]:
        """watch: raise for copies too. `FakeTensorMode` raises for values that are read in any case."""
        with torch.no_grad(), MODE, ByOperators(), Copies() if watch else nullcontext():
            yield


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses copies between host and device, unless they are asked not to wait."""

    def __torch_dispatch__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {value.device.type for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)}
        output = func(*args, **kwargs)
        after = before | {value.device.type for value in tree_flatten(output)[0] if isinstance(value, Tensor)}
        waits = not (kwargs.get("non_blocking") or (func is COPIES[1] and args[2:] and args[2]))
        if func in COPIES and len(after) > 1 and waits and _is_ours():
            raise HostWaits(f"{func}: a copy between host and device")
        return output


def _is_ours() -> bool:
    """Whether the code that runs is tokenmerge's, and not the model's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        if package in ("tokenmerge", "diffusers"):
            return package == "tokenmerge"
        frame = frame.f_back
    return True


class ByOperators(TorchFunctionMode):
    """A few methods of tensors as operators: as methods they ask for the device, which this machine does not have."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _AS_OPERATORS and isinstance(args[0], FakeTensor):
            return _AS_OPERATORS[func](*args, **kwargs)
        return func(*args, **kwargs)


def _indexed(tensor: Tensor, index: Any) -> Tensor:
    items = list(index) if isinstance(index, tuple) else [index]
    if any(item is Ellipsis for item in items):
        at = next(place for place, item in enumerate(items) if item is Ellipsis)
        given = sum(item is not None and item is not Ellipsis for item in items)
        items[at : at + 1] = [slice(None)] * (tensor.dim() - given)
    indices: list[Tensor | None] = []
    axis = 0
    for item in items:
        if item is None:
            tensor = torch.unsqueeze(tensor, axis)
        elif isinstance(item, int):
            tensor = torch.select(tensor, axis, item)
            continue
        elif isinstance(item, slice):
            begin, end, step = item.indices(tensor.shape[axis])
            tensor = torch.ops.aten.slice(tensor, axis, begin, end, step)
        else:
            indices += [None] * (axis - len(indices)) + [torch.as_tensor(item, device=tensor.device)]
        axis += 1
    return torch.ops.aten.index(tensor, indices) if indices else tensor


def _assigned(tensor: Tensor, index: Any, value: Any) -> None:
    place = _indexed(tensor, index)
    if isinstance(value, Tensor):
        torch.ops.aten.copy_(place, value)
    else:
        torch.ops.aten.fill_(place, value)


def _contiguous(tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    same = tensor.is_contiguous(memory_format=memory_format)
    return tensor if same else torch.ops.aten.clone(tensor, memory_format=memory_format)


def _interpolated(tensor: Tensor, size: Any = None, scale_factor: Any = None, **_: Any) -> Tensor:
    """One kernel on a GPU, of which only the shape matters here."""
    sides = tensor.shape[2:]
    if size is None:
        scales = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * len(sides)
        size = [int(side * scale) for side, scale in zip(sides, scales, strict=True)]
    sizes = (size,) * len(sides) if isinstance(size, int) else size
    return torch.ops.aten.new_empty(tensor, [*tensor.shape[:2], *sizes])


_AS_OPERATORS: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _indexed,
    Tensor.__setitem__: _assigned,
    Tensor.contiguous: _contiguous,
    Tensor.copy_: torch.ops.aten.copy_,
    torch.nn.functional.interpolate: _interpolated,
    Tensor.masked_fill: torch.ops.aten.masked_fill,
    Tensor.__invert__: torch.ops.aten.bitwise_not,
}
