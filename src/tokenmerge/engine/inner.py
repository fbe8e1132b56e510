"""The attention inside a module that takes no argument for it: fewer keys, their weights, fewer queries."""

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

from tokenmerge.models.attention_backends import UNKNOWN, Backend
from tokenmerge.ops.indexing import tokens_at
from tokenmerge.ops.weighted_keys import ATTENTION, Kernel, attend_weighted

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True, eq=False)
class Asked:
    """The queries that attention is asked, and what becomes of the answers."""

    queries: Tensor | None  # (B, Q) which of them; None: all
    answered: Callable[[Tensor], Tensor]  # (B, Q, C) -> (B, L, C): each token takes the answer to what stands for it


@dataclass(frozen=True, eq=False)
class Weights:
    """What is added to the logits of each key."""

    added: Tensor  # (B, 1, 1, K)
    # The first key of the image and the one behind its last, if all of them get the same and others nothing.
    image: tuple[int, int] | None = None
    as_mask: bool = True  # False: without a mask, if the module has none

    def behind(self, cached: int) -> Weights:
        """The same with keys from a cache before all others."""
        image = None if self.image is None else (self.image[0] + cached, self.image[1] + cached)
        return Weights(functional.pad(self.added, (cached, 0)), image, self.as_mask)


class InnerAttention(TorchFunctionMode):
    """While it is entered, the next self-attention of `length` tokens reads some of them, by weights of ours.

    Its queries may be those of `alone` tokens behind the first `before`, which others do not ask.

    Leaving out keys or queries here, after all that a model does to each of them, its positions too, is the same as
    leaving out the tokens they are made of.

    It is entered in one hook and left in another. Ctrl-C passes no hook on its way out and leaves it entered. So it
    acts on one attention and never again, and only while the tokens that the module was called with are alive: the
    frames with references to them are gone once the interrupt has been handled.
    """

    def __init__(
        self,
        tokens: Tensor | None,
        length: int,
        read: Tensor | None,
        weights: Weights | None,
        asked: Asked | None = None,
        before: int = 0,
        alone: int = 0,
        cached: bool = False,
        keys: int | None = None,
        backend: Backend = UNKNOWN,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Compiled code cannot hold weak references, and needs none: what is compiled is what runs.
        self._called_with = None if tokens is None or torch.compiler.is_compiling() else weakref.ref(tokens)
        self.length = length
        self.keys = length if keys is None else keys  # fewer than queries, if they are an argument
        self.read = read  # (B, K) which keys are read; None: all
        self.weights = weights  # None: none
        self.asked = asked  # None: every query, for its answer as it is
        self.before, self.alone = before, alone
        self.cached = cached  # keys of a cache may stand before those of the tokens
        self.used = False
        self._kernel = backend.kernel
        # Compiled code would be made for a table that changes while it runs.
        self._stand_in = None if torch.compiler.is_compiling() else backend.stand_in(self._attended_if_meant)

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        if self._stand_in is not None:
            self._stand_in.enter()

    def leave(self) -> None:
        if self._stand_in is not None:
            self._stand_in.leave()
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def leave_late(self) -> None:
        """Leave after an interrupt, when others may have been entered since, or this thread is another."""
        if self._stand_in is not None:
            self._stand_in.leave()
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
            answers = self._attended_if_meant(self._kernel, **kwargs)
            if answers is not None:
                return answers
        if func is Tensor.unflatten:
            # It asks its super(), which torch.compile cannot follow from here; this is the same without.
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)

    def _attended_if_meant(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, **how: Any
    ) -> Tensor | None:
        """The attention of heads (B, H, L, D); None if it is another than the one this is for."""
        if not (self._is_meant(query.shape[-2], key.shape[-2]) and self._is_running):
            return None
        self.used = True
        return self._attended(kernel, query, key, value, **how)

    def _is_meant(self, queries: int, keys: int) -> bool:
        return queries in (self.length, self.alone) and (keys == self.keys or (self.cached and keys > self.keys))

    @property
    def _is_running(self) -> bool:
        return not self.used and (self._called_with is None or self._called_with() is not None)

    def _attended(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **how: Any
    ) -> Tensor:
        """(B, H, L, D): the attention, over keys that are read, of queries that are asked."""
        read, weights = self._behind_cache(key.shape[-2] - self.keys)
        asked = self._asked_of(query.shape[-2])
        if read is not None:
            key, value = _at(key, read), _at(value, read)
        if asked is not None:
            query = _at(query, asked)
        if weights is not None and attn_mask is None and not weights.as_mask:
            answers = attend_weighted(kernel, query, key, value, weights.added, weights.image, **how)
        else:
            mask = _mask(attn_mask, None if weights is None else weights.added, read, asked)
            answers = kernel.attend(query, key, value, mask, **how)
        if self.asked is None:
            return answers
        return _in_heads(self.asked.answered(answers.transpose(1, 2).flatten(2)), answers.shape[1])

    def _behind_cache(self, cached: int) -> tuple[Tensor | None, Weights | None]:
        """Which keys are read, and their weights, if keys from a cache stand before them: those are all read."""
        read, weights = self.read, self.weights
        if cached and read is not None:
            every = torch.arange(cached, device=read.device).expand(read.shape[0], -1)
            read = torch.cat([every, read + cached], dim=1)
        if cached and weights is not None:
            weights = weights.behind(cached)
        return read, weights

    def _asked_of(self, queries: int) -> Tensor | None:
        """(B, Q) which queries are asked, among those that there are; None: all."""
        asked = None if self.asked is None else self.asked.queries
        if asked is None or queries == self.length:
            return asked
        count = asked.shape[1] - (self.length - self.alone)
        return asked[:, self.before : self.before + count] - self.before


def _mask(own: Tensor | None, weights: Tensor | None, read: Tensor | None, asked: Tensor | None) -> Tensor | None:
    """The attention's own mask, for the queries that are asked and over the keys that are read, and the weights."""
    if own is not None:
        own = own[:, None, None] if own.dim() == 2 else own[(None,) * (4 - own.dim())]
        if asked is not None and own.shape[-2] > 1:
            own = torch.take_along_dim(own, asked[:, None, :, None], dim=-2)
        if read is not None:
            own = torch.take_along_dim(own, read[:, None, None], dim=-1)
    if own is None or weights is None:
        return weights if own is None else own
    if own.dtype == torch.bool:
        return weights.masked_fill(~own, -math.inf)
    return weights + own


def _at(heads: Tensor, indices: Tensor) -> Tensor:
    """(B, H, L, D), (B, M) -> (B, H, M, D)"""
    return _in_heads(tokens_at(heads.transpose(1, 2).flatten(2), indices), heads.shape[1])


def _in_heads(tokens: Tensor, heads: int) -> Tensor:
    """(B, L, H * D) -> (B, H, L, D)"""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)
