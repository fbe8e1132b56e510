"""What computes the attention of a module: PyTorch, with or without masks, or a package that diffusers calls instead.

Packages (flash-attn, SageAttention) are functions in a table of diffusers, `set_attention_backend` chooses one. What is
done inside PyTorch's attention is done inside theirs by standing in that table while the module runs. The engine knows
neither the table nor its names: it asks `backend_of`, and uses what a `Backend` offers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.ops.weighted_keys import Kernel, PyTorchKernel

TABLE = "diffusers.models.attention_dispatch"
# Packages that take no mask but return sums, and whether those come as (B, L, H): else they are (B, H, L).
PACKAGES = {"flash": False, "flash_hub": False, "_flash_3": True, "sage": False, "sage_hub": False}
# PyTorch's own kernels by the names that diffusers has for them, and the kernel that is asked for sums.
PYTORCH = {
    "native": "flash",
    "_native_flash": "flash",
    "_native_cudnn": "cudnn",
    "_native_efficient": "",
    "_native_math": "",
}
WITHOUT_MASKS = ("_native_flash", "_native_cudnn", *PACKAGES)


@dataclass(frozen=True)
class Backend:
    """What computes the attention of one module."""

    name: str = ""  # as diffusers calls it; "" if it is not known
    takes_mask: bool = True
    sums_by: str = ""  # PyTorch's kernel that is asked for sums

    @property
    def kernel(self) -> Kernel:
        return PyTorchKernel(self.sums_by)

    def stand_in(self, attended: Callable[..., Tensor | None]) -> StandIn | None:
        """What calls `attended` in the place of a package; None if PyTorch computes the attention."""
        return StandIn(self.name, attended) if self.name in PACKAGES else None


UNKNOWN = Backend()


def backend_of(attention: nn.Module) -> Backend:
    """What computes the attention of a module as it is now. Asked outside of compiled code."""
    processor = getattr(attention, "processor", None)
    dispatches, native = _calls_of(type(attention).forward if processor is None else type(processor).__call__)
    chosen: Any = "native"
    if dispatches and getattr(processor, "_parallel_config", None) is None:
        chosen = getattr(processor, "_attention_backend", None)
        chosen = chosen or sys.modules[TABLE]._AttentionBackendRegistry._active_backend
    elif not native:
        return UNKNOWN
    # A user's `torch.nn.attention.sdpa_kernel` allows some kernels alone.
    cuda: Any = torch.backends.cuda
    masks = cuda.mem_efficient_sdp_enabled() or cuda.math_sdp_enabled()
    return _named(chosen, cuda.flash_sdp_enabled(), cuda.cudnn_sdp_enabled(), masks)


# Kept, because this is asked for every attention of every step.
@lru_cache(maxsize=256)
def _calls_of(function: Any) -> tuple[bool, bool]:
    """Whether a function names diffusers' dispatch of attention, and PyTorch's attention; neither if it is wrapped."""
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_names
    return "dispatch_attention_fn" in names, "scaled_dot_product_attention" in names


@lru_cache(maxsize=256)
def _named(chosen: Any, flash: bool, cudnn: bool, masks: bool) -> Backend:
    """chosen: a name or a member of diffusers' enumeration. The others: what PyTorch may use."""
    name = str(getattr(chosen, "value", chosen))
    if name in PACKAGES:
        return Backend(name, takes_mask=False)
    if name not in PYTORCH:
        return UNKNOWN
    if name == "native":
        return Backend(name, masks, "flash" if flash else "cudnn" if cudnn else "")
    return Backend(name, name not in WITHOUT_MASKS, PYTORCH[name])


class PackageKernel:
    """A package's function, which takes (B, L, H, D)."""

    def __init__(self, function: Callable[..., Any], sums_last: bool) -> None:
        self._function, self._sums_last = function, sums_last

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        heads = [each.transpose(1, 2) for each in (query, key, value)]
        answers: Tensor = self._function(*heads, attn_mask=mask, **options)
        return answers.transpose(1, 2)

    def attend_with_sums(
        self, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor] | None:
        if torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value)):
            return None  # their backward pass knows nothing of sums
        heads = [each.transpose(1, 2) for each in (query, key, value)]
        answers, sums = self._function(*heads, return_lse=True, **options)
        return answers.transpose(1, 2), sums.transpose(1, 2) if self._sums_last else sums


class StandIn:
    """Stands in diffusers' table in the place of a package, until it is taken out."""

    def __init__(self, name: str, attended: Callable[..., Tensor | None]) -> None:
        """attended: called with a kernel and heads (B, H, L, D); None if it leaves this attention alone."""
        self._functions: dict[Any, Any] = sys.modules[TABLE]._AttentionBackendRegistry._backends
        self._name = next(key for key in self._functions if key.value == name)
        self._attended = attended
        self._original: Any = None

    def enter(self) -> None:
        self._original, self._functions[self._name] = self._functions[self._name], self

    def leave(self) -> None:
        if self._functions[self._name] is self:
            self._functions[self._name] = self._original

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        kernel = PackageKernel(self._original, PACKAGES[self._name.value])
        heads = [each.transpose(1, 2) for each in (query, key, value)]
        answers = self._attended(kernel, *heads, **options)
        if answers is None:
            whole: Tensor = self._original(query, key, value, **options)
            return whole
        return answers.transpose(1, 2)
