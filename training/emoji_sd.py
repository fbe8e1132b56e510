"""The parts of `emoji-sd`: a five-level UNet with attention at every level and a small CLIP text encoder."""

from __future__ import annotations

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from training.vocabulary import TEXT_LENGTH

TEXT_WIDTH = 128
LEVELS = (32, 32, 64, 128, 192)
HEAD_WIDTH = 32


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """Two layers of width 128: it only has to tell a few hundred captions apart."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=4 * TEXT_WIDTH,
            projection_dim=TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=TEXT_LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_unet(latent_channels: int = 16, levels: tuple[int, ...] = LEVELS) -> UNet2DConditionModel:
    """Thin upper levels keep 4,096 tokens affordable; the lower ones hold what the images look like.

    The pooled text joins the time embedding (`addition_embed_type`), which names the image to every
    layer at once and makes learning captions much faster than cross-attention alone.
    """
    return UNet2DConditionModel(
        sample_size=32,
        in_channels=latent_channels,
        out_channels=latent_channels,
        block_out_channels=levels,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",) * len(levels),
        up_block_types=("CrossAttnUpBlock2D",) * len(levels),
        attention_head_dim=tuple(max(1, width // HEAD_WIDTH) for width in levels),  # diffusers: number of heads
        cross_attention_dim=TEXT_WIDTH,
        addition_embed_type="text",
        addition_embed_type_num_heads=4,
        time_embedding_dim=256,
        resnet_time_scale_shift="scale_shift",
        norm_num_groups=16,
        use_linear_projection=True,
    )


def build_scheduler() -> DDIMScheduler:
    """v-prediction with zero terminal SNR: the first step sees pure noise, so white backgrounds come out white."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,  # without effect at this spacing, but the pipeline asks for it
    )


class InnerUNet(nn.Module):
    """The UNet without its outermost levels, for smaller images.

    What is learnt here carries over when an outer level is added and the image is twice as large: the inner levels
    see features of the same size before and after, and a step costs a fraction of one of the whole UNet.
    """

    def __init__(self, unet: UNet2DConditionModel, dropped: int) -> None:
        super().__init__()
        channels: int = unet.config.in_channels
        above, outermost = unet.config.block_out_channels[dropped - 1 : dropped + 1]
        self.dropped = dropped
        self.conv_in = nn.Conv2d(channels, above, 3, padding=1)
        self.norm_out = nn.GroupNorm(unet.config.norm_num_groups, outermost)
        self.conv_out = nn.Conv2d(outermost, channels, 3, padding=1)

    def forward(self, unet: UNet2DConditionModel, sample: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        """Latents (B, C, h, w), timesteps (B,), text (B, L, D) -> prediction (B, C, h, w)."""
        time = unet.time_embedding(unet.get_time_embed(sample, timestep))
        time = time + unet.get_aug_embed(time, text, {})
        x = self.conv_in(sample)
        skips = [x]
        for block in unet.down_blocks[self.dropped :]:
            x, states = block(x, time, encoder_hidden_states=text)
            skips += states
        x = unet.mid_block(x, time, encoder_hidden_states=text)
        *inner, outermost = unet.up_blocks[: -self.dropped]
        for block in inner:
            taken = len(block.resnets)
            skips, states = skips[:-taken], tuple(skips[-taken:])
            x = block(x, states, time, encoder_hidden_states=text)
        x = _without_upsampling(outermost, x, tuple(skips), time, text)
        prediction: Tensor = self.conv_out(silu(self.norm_out(x)))
        return prediction


def _without_upsampling(block: nn.Module, x: Tensor, states: tuple[Tensor, ...], time: Tensor, text: Tensor) -> Tensor:
    """An up block without its last layer, which would lead to the level that is not there."""
    upsamplers = block.upsamplers
    block.upsamplers = None  # type: ignore[assignment]
    try:
        features: Tensor = block(x, states, time, encoder_hidden_states=text)
        return features
    finally:
        block.upsamplers = upsamplers


class EmojiSD(nn.Module):
    """Everything that is trained, and the loss. With `levels`, only this many of the UNet's innermost ones are."""

    signal: Tensor  # (timesteps,): the signal's share of the variance

    def __init__(self, tokenizer: CLIPTokenizer, latent_channels: int = 16, levels: int = len(LEVELS)) -> None:
        super().__init__()
        self.text_encoder = build_text_encoder(tokenizer)
        self.unet = build_unet(latent_channels)
        self.inner = nn.ModuleDict(
            {str(len(LEVELS) - dropped): InnerUNet(self.unet, dropped) for dropped in range(1, len(LEVELS) - 1)}
        )
        self.levels = levels
        self.register_buffer("signal", build_scheduler().alphas_cumprod.clone(), persistent=False)

    def predict(self, noisy: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        """Velocity (B, C, h, w)."""
        if self.levels < len(LEVELS):
            velocity: Tensor = self.inner[str(self.levels)](self.unet, noisy, timestep, text)
        else:
            velocity = self.unet(noisy, timestep, text, return_dict=False)[0]
        return velocity

    def loss(self, clean: Tensor, tokens: Tensor, bias: float) -> Tensor:
        """Mean squared velocity error for latents (B, C, h, w) and token ids (B, L).

        A `bias` below 1 samples more of the noisy steps, where it is decided what the image shows.
        """
        timestep = (torch.rand(len(clean)) ** bias * len(self.signal)).long().clamp(max=len(self.signal) - 1)
        signal = self.signal[timestep].view(-1, 1, 1, 1)
        noise = torch.randn_like(clean)
        noisy = signal.sqrt() * clean + (1 - signal).sqrt() * noise
        velocity = signal.sqrt() * noise - (1 - signal).sqrt() * clean
        text = self.text_encoder(tokens).last_hidden_state
        return (self.predict(noisy, timestep, text) - velocity).square().mean()

    @torch.no_grad()
    def sample(self, noise: Tensor, tokens: Tensor, nothing: Tensor, steps: int, guidance: float) -> Tensor:
        """Noise (B, C, h, w) -> latents, by DDIM guided by token ids (B, L) away from `nothing` (1, L)."""
        scheduler, latents = build_scheduler(), noise
        scheduler.set_timesteps(steps)
        text = self.text_encoder(torch.cat([nothing.expand_as(tokens), tokens])).last_hidden_state
        for timestep in scheduler.timesteps:
            both = self.predict(latents.repeat(2, 1, 1, 1), timestep.expand(len(text)), text)
            without, with_text = both.chunk(2)
            latents = scheduler.step(without + guidance * (with_text - without), timestep, latents).prev_sample
        return latents
