"""The parts of `photo-flux`: a small Flux transformer with a CLIP and a T5 text encoder."""

from __future__ import annotations

from itertools import pairwise

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTokenizer, T5Config, T5EncoderModel

from training.alignment import Projection
from training.emoji_sd import TEXT_WIDTH, build_text_encoder
from training.photographs import CHANNELS

BASE_TOKENS, SHIFT_GROWTH = 64, 0.35
UNIFORM_SHARE = 0.1
ALIGNED_BLOCKS = 3  # the hidden states behind the first three blocks are aligned
BASE_SHIFT, MAX_SHIFT = 0.7, 1.5  # at 256 and 4,096 tokens


def build_t5(tokenizer: CLIPTokenizer) -> T5EncoderModel:
    """Two layers of width 128, reading the same token ids as the CLIP encoder."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=TEXT_WIDTH,
            d_kv=32,
            d_ff=2 * TEXT_WIDTH,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            is_encoder_decoder=False,
        )
    )


def build_transformer() -> FluxTransformer2DModel:
    """Two double and five single blocks of width 256, each starting as the identity.

    A head of 64 with 30 dimensions a spatial axis has eight rotary frequencies that differ over 64 positions.
    """
    transformer = FluxTransformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=2,
        num_single_layers=5,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=TEXT_WIDTH,
        axes_dims_rope=(4, 30, 30),
    )
    norms = [module for name, module in transformer.named_modules() if name.split(".")[-1].startswith("norm")]
    modulations = [norm.linear for norm in norms if hasattr(norm, "linear")]
    for layer in [*modulations, transformer.proj_out]:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return transformer


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Flow matching; the more tokens, the more of the steps are spent at high noise."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=BASE_SHIFT, max_shift=MAX_SHIFT)


def shifted(levels: Tensor, shift: float) -> Tensor:
    """Noise levels in [0, 1] moved towards 1 by a shift above 1."""
    return shift * levels / (1 + (shift - 1) * levels)


def noise_levels(count: int, tokens: int, bias: float) -> Tensor:  # (count,)
    """Noise levels to train at: logit-normal with a uniform share, higher for more tokens.

    The same noise hides less of a larger image, because its neighbouring tokens repeat one another.
    """
    middle, anywhere = torch.randn(count).sigmoid(), torch.rand(count)
    levels = torch.where(torch.rand(count) < UNIFORM_SHARE, anywhere, middle) ** bias
    return shifted(levels, (tokens / BASE_TOKENS) ** SHIFT_GROWTH)


def grid_ids(positions: Tensor) -> Tensor:
    """Positions (side, 2) of rows and of columns -> rotary ids (side * side, 3), row by row."""
    rows, columns = torch.meshgrid(positions[:, 0], positions[:, 1], indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).flatten(0, 1)


def spread_positions(side: int, canvas: int) -> Tensor:  # (side, 2)
    """`side` positions a direction, spread evenly over `canvas` positions."""
    stride = canvas / side
    return ((torch.arange(side) + 0.5) * stride - 0.5)[:, None].expand(side, 2)


def pack(latents: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, h/2 * w/2, 4C), in the order of the Flux pipeline."""
    b, c, h, w = latents.shape
    return latents.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)


def unpack(tokens: Tensor, side: int) -> Tensor:
    """(B, side * side, 4C) -> (B, C, 2 * side, 2 * side)."""
    b, _, c = tokens.shape
    return tokens.view(b, side, side, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, c // 4, 2 * side, 2 * side)


def run_for_training(
    transformer: FluxTransformer2DModel,
    tokens: Tensor,
    text: Tensor,
    pooled: Tensor,
    sigma: Tensor,
    ids: Tensor,
    share: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The transformer's output for packed latents (B, N, 4C), if a random `share` of the tokens passes by its middle.

    The first and the last block see all tokens. Those between see the same random tokens of every sample, and the
    others keep what the first block made of them, which makes a step up to twice as fast. The second and third results
    are the hidden states to align (B, M, width) and the tokens (M,) that they belong to.
    """
    count = tokens.shape[1]
    chosen = torch.randperm(count)[: max(1, round(count * (1 - share)))].sort().values
    hidden, context = transformer.x_embedder(tokens), transformer.context_embedder(text)
    time = transformer.time_text_embed(sigma * 1000, pooled)
    rotary = transformer.pos_embed(torch.cat([torch.zeros(text.shape[1], 3), ids]))
    rows = torch.cat([torch.arange(text.shape[1]), chosen + text.shape[1]])
    some = tuple(table[rows] for table in rotary)
    first, *middle, last = [*transformer.transformer_blocks, *transformer.single_transformer_blocks]
    context, hidden = first(hidden, context, time, rotary)
    routed = hidden[:, chosen]
    for number, block in enumerate(middle, start=2):
        context, routed = block(routed, context, time, some)
        if number == ALIGNED_BLOCKS:
            aligned = routed
    hidden = hidden.index_copy(1, chosen, routed.to(hidden.dtype))
    _, hidden = last(hidden, context, time, rotary)
    return transformer.proj_out(transformer.norm_out(hidden, time)), aligned, chosen


class PhotoFlux(nn.Module):
    """Everything that is trained, and the loss.

    `route` is the share of tokens that pass by the middle blocks in training, of frames of more than 64 tokens.
    `align` is the weight of the loss that aligns hidden states with Inception features.
    """

    route = 0.0
    align = 0.0

    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.text_encoder = build_text_encoder(tokenizer)
        self.text_encoder_2 = build_t5(tokenizer)
        self.transformer = build_transformer()
        self.projection = Projection(self.transformer.inner_dim)

    def encode(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids (B, L) -> text (B, L, D) and pooled text (B, D)."""
        return self.text_encoder_2(tokens).last_hidden_state, self.text_encoder(tokens).pooler_output

    def predict(self, noisy: Tensor, sigma: Tensor, text: Tensor, pooled: Tensor, positions: Tensor) -> Tensor:
        """Velocity (B, C, h, w) of latents at noise levels sigma (B,), whose tokens are at positions (h/2, 2)."""
        ids, side = grid_ids(positions), noisy.shape[-1] // 2
        tokens = self.transformer(
            pack(noisy),
            encoder_hidden_states=text,
            pooled_projections=pooled,
            timestep=sigma,
            img_ids=ids,
            txt_ids=torch.zeros(text.shape[1], 3),
            return_dict=False,
        )[0]
        return unpack(tokens, side)

    def loss(self, clean: Tensor, tokens: Tensor, positions: Tensor, features: Tensor | None, bias: float) -> Tensor:
        """Mean squared velocity error for latents (B, C, h, w), token ids (B, L) and positions (h/2, 2).

        A `bias` below 1 trains more at high noise. With features (B, N, D) of the clean tokens, the loss of the
        alignment is added.
        """
        sigma = noise_levels(len(clean), len(positions) ** 2, bias)
        level = sigma.view(-1, 1, 1, 1)
        noise = torch.randn_like(clean)
        noisy = (1 - level) * clean + level * noise
        ids = grid_ids(positions)
        share = self.route if len(ids) > BASE_TOKENS else 0.0
        text, pooled = self.encode(tokens)
        velocity, hidden, chosen = run_for_training(self.transformer, pack(noisy), text, pooled, sigma, ids, share)
        loss = (velocity - pack(noise - clean)).square().mean()
        if features is None or not self.align:
            return loss
        return loss + self.align * self.projection.loss(hidden, features[:, chosen])

    @torch.no_grad()
    def sample(
        self, noise: Tensor, tokens: Tensor, nothing: Tensor, steps: int, guidance: float, canvas: int | None = None
    ) -> Tensor:
        """Noise (B, C, h, w) -> latents, by Euler steps guided by token ids (B, L) away from `nothing` (1, L).

        Below the native size the tokens are spread over its positions, or over `canvas` of them.
        """
        side = noise.shape[-1] // 2
        positions = spread_positions(side, canvas or max(side, 32))
        text, pooled = self.encode(torch.cat([nothing.expand_as(tokens), tokens]))
        sigmas = shifted(torch.linspace(1, 0, steps + 1), (side * side / BASE_TOKENS) ** SHIFT_GROWTH)
        latents = noise
        for now, after in pairwise(sigmas):
            both = self.predict(latents.repeat(2, 1, 1, 1), now.expand(len(text)), text, pooled, positions)
            without, with_text = both.chunk(2)
            latents = latents + (after - now) * (without + guidance * (with_text - without))
        return latents
