"""Faster operations for training on a CPU: attention and GELU as a few plain ones, rotary positions as one product.

At a few hundred tokens torch's fused attention takes up to four times as long there and back as two matrix products
with a softmax between them, and the tanh form of GELU four times as long as the erf form, which differs by less than
0.001. The weights are the same; what is exported runs the stock operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from diffusers.models.transformers import transformer_flux
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention over (B, heads, L, D), with the arguments of torch's; dropout and grouped heads are not used here."""
    scores = (query * (scale or query.shape[-1] ** -0.5)) @ key.transpose(-1, -2)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1).to(value.dtype) @ value


def turned(x: Tensor, rotary: tuple[Tensor, Tensor], sequence_dim: int = 1, **_: Any) -> Tensor:
    """Rotary positions on pairs of neighbouring dimensions of x (B, L, heads, D), as a product of complex numbers."""
    cos, sin = rotary  # (L, D), every value twice
    turns = torch.complex(cos[:, ::2], sin[:, ::2]).view(1, len(cos), 1, -1)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class _QuickMode(TorchFunctionMode):
    """Replaces attention and GELU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return plain_attention(*args, **kwargs)
        if func is gelu:
            return gelu(args[0])
        return func(*args, **kwargs)


@contextmanager
def quick_operations(enabled: bool) -> Iterator[None]:
    """Matrix products in bfloat16 and the operations above, for one forward pass of a training step."""
    if not enabled:
        yield
        return
    stock = transformer_flux.apply_rotary_emb
    transformer_flux.apply_rotary_emb = turned
    try:
        with torch.autocast("cpu", torch.bfloat16), _QuickMode():
            yield
    finally:
        transformer_flux.apply_rotary_emb = stock


def half_precision(enabled: bool) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 and all else as it is, which compiled blocks make quick by themselves.

    A CPU without instructions for bfloat16 emulates it, at a quarter of the speed of float32, and computes in float32.
    """
    return torch.autocast("cpu", torch.bfloat16) if enabled and computes_bfloat16() else nullcontext()


def computes_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def spread_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Attention over (B, L, heads, D), the layout of diffusers."""
    mask = options.get("attn_mask")
    return plain_attention(*(part.transpose(1, 2) for part in (query, key, value)), attn_mask=mask).transpose(1, 2)


def compile_blocks(transformer: nn.Module) -> None:
    """Compile every block of a Flux transformer for training; blocks of one kind share a graph for each shape.

    The rest stays eager: one graph of the whole transformer takes minutes to compile and is no faster.
    """
    transformer_flux.dispatch_attention_fn = spread_attention
    torch._dynamo.config.cache_size_limit = 64
    for blocks in (transformer.transformer_blocks, transformer.single_transformer_blocks):
        for block in blocks:
            block.compile(dynamic=False)
