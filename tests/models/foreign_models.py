"""Models as strangers write them, in plain torch: nothing here is like diffusers, and nothing knows tokenmerge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, H, N, D) by rows of (N, D / 2) or (B, N, D / 2)."""
    cos, sin = (rows if rows.dim() == 2 else rows[:, None] for rows in (cos, sin))
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)


class FlowAttention(nn.Module):
    """Self-attention with cosines and sines as two arguments, and a mask under an unusual name."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=bias)
        return self.out(y.transpose(1, 2).flatten(2))


class SwallowingAttention(FlowAttention):
    """Takes anything by name and drops what it does not know."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, **anything: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x, cos, sin)


class FlowBlock(nn.Module):
    def __init__(self, width: int, heads: int, attention: type[FlowAttention]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, emb: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x) + emb[:, None], cos, sin)
        return x + self.mlp(self.norm2(x))


class FlowDiT(nn.Module):
    """A rectified-flow transformer of class labels. Its time rises: 0 is noise, 1 the image."""

    def __init__(self, attention: type[FlowAttention] = FlowAttention, batched_rows: bool = False) -> None:
        super().__init__()
        self.patchify, self.unpatchify = nn.Conv2d(4, 16, 2, 2), nn.ConvTranspose2d(16, 4, 2, 2)
        self.label = nn.Embedding(10, 16)
        self.layers = nn.ModuleList(FlowBlock(16, 2, attention) for _ in range(3))
        self.batched_rows = batched_rows

    def forward(self, noisy: Tensor, t: Tensor, y: Tensor) -> Tensor:
        grid = self.patchify(noisy)
        height, width = grid.shape[-2:]
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        angles = torch.cat([axis.flatten()[:, None] * torch.tensor([1.0, 0.1]) for axis in (rows, columns)], dim=-1)
        angles = (angles[None] if self.batched_rows else angles).to(noisy.device)
        tokens = grid.flatten(2).transpose(1, 2)
        emb = self.label(y) + t[:, None]
        for layer in self.layers:
            tokens = layer(emb, tokens, angles.cos(), angles.sin())
        return self.unpatchify(tokens.transpose(1, 2).unflatten(2, (height, width)))


class ImageAttention(nn.Module):
    """A block that is nothing but attention over the pixels of a (B, C, H, W) image, with its own residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.qkv, self.proj = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(image).flatten(2)).transpose(1, 2).chunk(3, dim=-1)
        y = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return image + self.proj(y.transpose(1, 2)).view(image.shape)


class ConsistencyUNet(nn.Module):
    """One level of convolutions and attention, one below it; sigma is the noise that is left."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.top, self.bottom = ImageAttention(8), ImageAttention(8)
        self.down, self.up = nn.Conv2d(8, 8, 2, 2), nn.ConvTranspose2d(8, 8, 2, 2)

    def forward(self, x: Tensor, sigma: float) -> Tensor:
        top = self.top(self.inside(x) + sigma)
        return self.outside(top + self.up(self.bottom(self.down(top))))
