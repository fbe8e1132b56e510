"""Distils `emoji-sd` to four steps as a LoRA: one step of the student is worth several guided steps of the teacher.

    python -m training.train emoji-sd-4 --size 256 --samples 20000 --batch 8 --lr 5e-4

Progressive distillation (Salimans and Ho, 2022) in one go. An image is noised to one of four noise levels, the teacher
takes `TEACHER_STEPS` guided DDIM steps to the next level, and the student learns the velocity that gets there in one.
Guidance becomes part of the student, so it runs without a second pass. The teacher is the packaged `emoji-sd`.
"""

from __future__ import annotations

from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig
from torch import Tensor, nn
from transformers import CLIPTokenizer

from tokenmerge.zoo import folder_of, known_captions, load
from training.latents import resized
from training.pictures import Pictures, tokenize

STEPS = 4
TEACHER_STEPS = 4  # for each step of the student
GUIDANCE = 3.0
RANK = 32
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "net.0.proj", "net.2", "conv1", "conv2", "proj_in", "proj_out"]
ADAPTER = "default"


def level_times(steps: int, timesteps: int) -> Tensor:  # (steps + 1,)
    """Timesteps at which a trailing schedule evaluates the model, and -1 for the clean image at the end.

    >>> level_times(4, 1000).tolist()
    [999, 749, 499, 249, -1]
    """
    return torch.linspace(timesteps, 0, steps + 1).round().long() - 1


def ddim_step(noisy: Tensor, velocity: Tensor, signal: Tensor, next_signal: Tensor) -> Tensor:
    """Latents (B, C, h, w) at the next noise level; `signal` (B, 1, 1, 1) is the image's share of the variance."""
    clean = signal.sqrt() * noisy - (1 - signal).sqrt() * velocity
    noise = (1 - signal).sqrt() * noisy + signal.sqrt() * velocity
    return next_signal.sqrt() * clean + (1 - next_signal).sqrt() * noise


def velocity_between(noisy: Tensor, reached: Tensor, signal: Tensor, next_signal: Tensor) -> Tensor:
    """The velocity with which one `ddim_step` from `noisy` ends at `reached`."""
    kept = (next_signal * signal).sqrt() + ((1 - next_signal) * (1 - signal)).sqrt()
    turned = ((1 - next_signal) * signal).sqrt() - (next_signal * (1 - signal)).sqrt()
    return (reached - kept * noisy) / turned


class FourSteps(nn.Module):
    """The UNet of `emoji-sd` with a LoRA: without it the teacher, with it the student."""

    signal: Tensor  # (timesteps + 1,): the last entry, which -1 selects, is the clean image

    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        pipe: Any = load("emoji-sd")
        self.text_encoder = pipe.text_encoder.requires_grad_(False)
        self.unet: UNet2DConditionModel = pipe.unet.requires_grad_(False)
        self.unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS), adapter_name=ADAPTER)
        self.nothing = tokenize(tokenizer, [""])
        self.register_buffer("signal", torch.cat([pipe.scheduler.alphas_cumprod, torch.ones(1)]), persistent=False)

    def predict(self, noisy: Tensor, timestep: Tensor, text: Tensor, student: bool) -> Tensor:
        """Velocity (B, C, h, w) of the student or of the teacher, without guidance."""
        if student:
            self.unet.enable_adapters()
        else:
            self.unet.disable_adapters()
        velocity: Tensor = self.unet(noisy, timestep, text, return_dict=False)[0]
        return velocity

    @torch.no_grad()
    def teach(self, noisy: Tensor, start: Tensor, end: Tensor, text: Tensor, empty: Tensor) -> Tensor:
        """Latents (B, C, h, w) that guided steps of the teacher reach between two timesteps (B,)."""
        for number in range(TEACHER_STEPS):
            now, after = (start + ((end - start) * (number + more) / TEACHER_STEPS).round().long() for more in (0, 1))
            both = self.predict(noisy.repeat(2, 1, 1, 1), now.repeat(2), torch.cat([empty, text]), student=False)
            without, with_text = both.chunk(2)
            noisy = ddim_step(noisy, without + GUIDANCE * (with_text - without), self.share(now), self.share(after))
        return noisy

    def share(self, timestep: Tensor) -> Tensor:  # (B, 1, 1, 1)
        """The image's share of the variance at timesteps (B,)."""
        return self.signal[timestep].view(-1, 1, 1, 1)

    def loss(self, clean: Tensor, tokens: Tensor, bias: float) -> Tensor:
        """Mean squared velocity error for latents (B, C, h, w) and token ids (B, L).

        A `bias` below 1 trains more of the first steps, which see the most noise.
        """
        times = level_times(STEPS, len(self.signal) - 1)
        step = ((1 - torch.rand(len(clean)) ** bias) * STEPS).long().clamp(max=STEPS - 1)
        start, end = times[step], times[step + 1]
        share = self.share(start)
        noisy = share.sqrt() * clean + (1 - share).sqrt() * torch.randn_like(clean)
        with torch.no_grad():
            text = self.text_encoder(tokens).last_hidden_state
            empty = self.text_encoder(self.nothing).last_hidden_state.expand_as(text)
        wanted = velocity_between(noisy, self.teach(noisy, start, end, text, empty), share, self.share(end))
        return (self.predict(noisy, start, text, student=True) - wanted).square().mean()

    @torch.no_grad()
    def sample(self, noise: Tensor, tokens: Tensor, nothing: Tensor, steps: int, guidance: float) -> Tensor:
        """Noise (B, C, h, w) -> latents in `steps` steps; `nothing` and `guidance` are part of the student."""
        text, latents = self.text_encoder(tokens).last_hidden_state, noise
        times = level_times(steps, len(self.signal) - 1)
        for now, after in pairwise(times):
            velocity = self.predict(latents, now.expand(len(latents)), text, student=True)
            latents = ddim_step(latents, velocity, self.share(now[None]), self.share(after[None]))
        return latents


def teacher_tokenizer() -> CLIPTokenizer:
    """The tokenizer of the packaged teacher."""
    tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder_of("emoji-sd") / "tokenizer")
    return tokenizer


def teacher_captions(_: Path) -> list[str]:
    """What the packaged teacher knows."""
    return known_captions("emoji-sd")


def teacher_batches(args: Namespace, tokenizer: CLIPTokenizer, size: int) -> Pictures:
    """Emoji at one size, encoded by the teacher's own autoencoder."""
    import numpy as np

    captions = teacher_captions(args.work)
    images = np.load(args.work / "pictures.npz")["pictures"][: len(captions)]
    with torch.no_grad():
        latents = load("emoji-sd").vae.encoder(resized(images, size))
    return Pictures(latents, tokenizer, captions)


def export(model: FourSteps, folder: Path) -> None:
    """Write the student's LoRA in half precision, as `StableDiffusionPipeline.load_lora_weights` reads it."""
    from diffusers import StableDiffusionPipeline
    from peft import get_peft_model_state_dict

    weights = {name: weight.half() for name, weight in get_peft_model_state_dict(model.unet).items()}
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=weights, safe_serialization=True)
