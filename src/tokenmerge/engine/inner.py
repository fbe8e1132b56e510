"""PyTorch's own attention inside a module that takes no argument for it: fewer keys, their weights, fewer queries."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from tokenmerge.ops.picking import picked

ATTENTION = functional.scaled_dot_product_attention
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True, eq=False)
class Asked:
    """The queries that attention is asked, and what becomes of the answers."""

    queries: Tensor | None  # (B, Q) which of them; None: all
    answered: Callable[[Tensor], Tensor]  # (B, Q, C) -> (B, L, C): each token takes the answer to what stands for it


class InnerAttention(TorchFunctionMode):
    """While it is entered, the next self-attention of `length` tokens reads some of them, by weights of ours.

    Leaving out keys or queries here, after all that a model does to each of them, its positions too, is the same as
    leaving out the tokens they are made of.

    It is entered in one hook and left in another. Ctrl-C passes no hook on its way out and leaves it entered. So it
    acts on one attention and never again, and only while the tokens that the module was called with are alive: the
    frames that held them are gone once the interrupt has been handled.
    """

    def __init__(
        self,
        tokens: Tensor | None,
        length: int,
        read: Tensor | None,
        weights: Tensor | None,
        asked: Asked | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Compiled code cannot hold weak references, and needs none: what is compiled is what runs.
        self._called_with = None if tokens is None or torch.compiler.is_compiling() else weakref.ref(tokens)
        self.length = length
        self.read = read  # (B, K) which keys are read; None: all
        self.weights = weights  # (B, 1, 1, K) to be added to logits; None: none
        self.asked = asked  # None: every query, for its answer as it is
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
            kwargs.update(zip(NAMES, args, strict=False))
            args = ()
            lengths = {kwargs[name].shape[-2] for name in ("query", "key")}
            if lengths == {self.length} and self._is_running:
                self.used = True
                return self._attended(**kwargs)
        if func is Tensor.unflatten:
            # It asks its super(), which torch.compile cannot follow from here; this is the same without.
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)

    @property
    def _is_running(self) -> bool:
        return not self.used and (self._called_with is None or self._called_with() is not None)

    def _attended(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **how: Any
    ) -> Tensor:
        """(B, H, L, D): the attention, over keys that are read, of queries that are asked."""
        mask = self._mask(attn_mask)
        if self.read is not None:
            key, value = _at(key, self.read), _at(value, self.read)
        if self.asked is None:
            return ATTENTION(query, key, value, attn_mask=mask, **how)
        if self.asked.queries is not None:
            query = _at(query, self.asked.queries)
        answers = ATTENTION(query, key, value, attn_mask=mask, **how)
        return _in_heads(self.asked.answered(answers.transpose(1, 2).flatten(2)), answers.shape[1])

    def _mask(self, own: Tensor | None) -> Tensor | None:
        """The attention's own mask, for the queries that are asked and over the keys that are read, and the weights."""
        if own is not None:
            own = own[(None,) * (4 - own.dim())]
            if self.asked is not None and self.asked.queries is not None and own.shape[-2] > 1:
                own = torch.take_along_dim(own, self.asked.queries[:, None, :, None], dim=-2)
            if self.read is not None:
                own = torch.take_along_dim(own, self.read[:, None, None], dim=-1)
        if own is None or self.weights is None:
            return self.weights if own is None else own
        if own.dtype == torch.bool:
            return self.weights.masked_fill(~own, -math.inf)
        return self.weights + own


def _at(heads: Tensor, indices: Tensor) -> Tensor:
    """(B, H, L, D), (B, M) -> (B, H, M, D)"""
    return _in_heads(picked(heads.transpose(1, 2).flatten(2), indices), heads.shape[1])


def _in_heads(tokens: Tensor, heads: int) -> Tensor:
    """(B, L, H * D) -> (B, H, L, D)"""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)
