"""The parts of `emoji-flux`: a small Flux transformer with a CLIP and a T5 text encoder."""

from __future__ import annotations

from itertools import pairwise

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTokenizer

from training.emoji_sd import TEXT_WIDTH, build_text_encoder
from training.photo_flux import build_t5, pack, unpack

NATIVE_TOKENS = 16  # tokens a side at 256 px


def build_transformer(latent_channels: int = 16) -> FluxTransformer2DModel:
    """Two double and five single blocks of width 192."""
    return FluxTransformer2DModel(
        in_channels=4 * latent_channels,
        num_layers=2,
        num_single_layers=5,
        attention_head_dim=32,
        num_attention_heads=6,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=TEXT_WIDTH,
        axes_dims_rope=(8, 12, 12),
    )


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Flow matching with the shift Flux uses: more steps at high noise for larger images."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def image_ids(side: int) -> Tensor:
    """Rotary positions (side * side, 3); below the native size spread over it, so that shapes carry over."""
    spread = max(1.0, NATIVE_TOKENS / side)
    places = torch.arange(side) * spread + (spread - 1) / 2
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).flatten(0, 1)


class EmojiFlux(nn.Module):
    """Everything that is trained, and the loss."""

    def __init__(self, tokenizer: CLIPTokenizer, latent_channels: int = 16) -> None:
        super().__init__()
        self.text_encoder = build_text_encoder(tokenizer)
        self.text_encoder_2 = build_t5(tokenizer)
        self.transformer = build_transformer(latent_channels)

    def encode(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids (B, L) -> text (B, L, D) and pooled text (B, D)."""
        return self.text_encoder_2(tokens).last_hidden_state, self.text_encoder(tokens).pooler_output

    def predict(self, noisy: Tensor, sigma: Tensor, text: Tensor, pooled: Tensor) -> Tensor:
        """Velocity (B, C, h, w) of latents at noise levels sigma (B,)."""
        side = noisy.shape[-1] // 2
        tokens = self.transformer(
            pack(noisy),
            encoder_hidden_states=text,
            pooled_projections=pooled,
            timestep=sigma,
            img_ids=image_ids(side),
            txt_ids=torch.zeros(text.shape[1], 3),
            return_dict=False,
        )[0]
        return unpack(tokens, side)

    def loss(self, clean: Tensor, tokens: Tensor, bias: float) -> Tensor:
        """Mean squared velocity error for latents (B, C, h, w) and token ids (B, L).

        A `bias` below 1 samples more of the noisy steps, where it is decided what the image shows.
        """
        sigma = torch.rand(len(clean)) ** bias
        level = sigma.view(-1, 1, 1, 1)
        noise = torch.randn_like(clean)
        noisy = (1 - level) * clean + level * noise
        return (self.predict(noisy, sigma, *self.encode(tokens)) - (noise - clean)).square().mean()

    @torch.no_grad()
    def sample(self, noise: Tensor, tokens: Tensor, nothing: Tensor, steps: int, guidance: float) -> Tensor:
        """Noise (B, C, h, w) -> latents, by Euler steps guided by token ids (B, L) away from `nothing` (1, L)."""
        latents = noise
        text, pooled = self.encode(torch.cat([nothing.expand_as(tokens), tokens]))
        even = torch.linspace(1, 0, steps + 1)
        sigmas = 1.65 * even / (1 + 0.65 * even)  # exp(0.5), Flux's shift at 256 tokens
        for now, after in pairwise(sigmas):
            both = self.predict(latents.repeat(2, 1, 1, 1), now.expand(len(text)), text, pooled)
            without, with_text = both.chunk(2)
            latents = latents + (after - now) * (without + guidance * (with_text - without))
        return latents
