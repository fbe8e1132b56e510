"""Turns `emoji-sd` into a model of four steps, as a LoRA.

    python -m training.train emoji-sd-4 --size 256 --samples 20000 --batch 8 --lr 5e-4 --half

Consistency training at four noise levels. A caption of `emoji-sd` belongs to one image, so the end of every path from
noise to image is known, and no teacher has to find it: at each level the student learns to go there in one step. Half
of the batches start from noise and take the student's own steps up to the level that is trained, so that it learns to
mend its own drafts. It is trained without an empty caption and runs without guidance, in one pass a step.
"""

from __future__ import annotations

import random
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
from training.images import Images
from training.latents import resized

STEPS = 4
DRAFTS = 0.5  # of the batches start from the student's own steps
RANK = 16
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


def velocity_to(noisy: Tensor, clean: Tensor, signal: Tensor) -> Tensor:
    """The velocity from which `ddim_step` finds the image `clean` in `noisy`; `signal` is below 1."""
    return (signal.sqrt() * noisy - clean) / (1 - signal).sqrt()


class FourSteps(nn.Module):
    """The packaged `emoji-sd` with a LoRA on its UNet, the only part that is trained."""

    signal: Tensor  # (timesteps + 1,): the last entry, which -1 selects, is the clean image

    def __init__(self, _: CLIPTokenizer) -> None:
        super().__init__()
        pipe: Any = load("emoji-sd")
        self.text_encoder = pipe.text_encoder.requires_grad_(False)
        self.unet: UNet2DConditionModel = pipe.unet.requires_grad_(False)
        self.unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS), adapter_name=ADAPTER)
        self.register_buffer("signal", torch.cat([pipe.scheduler.alphas_cumprod, torch.ones(1)]), persistent=False)

    def predict(self, noisy: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        """Velocity (B, C, h, w)."""
        velocity: Tensor = self.unet(noisy, timestep, text, return_dict=False)[0]
        return velocity

    def share(self, timestep: Tensor) -> Tensor:  # (B, 1, 1, 1)
        """The image's share of the variance at timesteps (B,)."""
        return self.signal[timestep].view(-1, 1, 1, 1)

    def loss(self, clean: Tensor, tokens: Tensor, bias: float) -> Tensor:
        """Mean squared velocity error for latents (B, C, h, w) and token ids (B, L).

        A `bias` below 1 trains more of the first steps, which see the most noise.
        """
        times = level_times(STEPS, len(self.signal) - 1)
        step = min(STEPS - 1, int((1 - random.random() ** bias) * STEPS))
        share = self.share(times[step : step + 1])
        noise = torch.randn_like(clean)
        with torch.no_grad():
            text = self.text_encoder(tokens).last_hidden_state
            if random.random() < DRAFTS:
                noisy = self.follow(noise, text, times[: step + 1])
            else:
                noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        velocity = self.predict(noisy, times[step].expand(len(clean)), text)
        return (velocity - velocity_to(noisy, clean, share)).square().mean()

    def follow(self, latents: Tensor, text: Tensor, times: Tensor) -> Tensor:
        """Latents (B, C, h, w) at the last of the timesteps, by one step from each to the next."""
        for now, after in pairwise(times):
            velocity = self.predict(latents, now.expand(len(latents)), text)
            latents = ddim_step(latents, velocity, self.share(now[None]), self.share(after[None]))
        return latents

    @torch.no_grad()
    def sample(self, noise: Tensor, tokens: Tensor, nothing: Tensor, steps: int, guidance: float) -> Tensor:
        """Noise (B, C, h, w) -> latents in `steps` steps; `nothing` and `guidance` are part of the student."""
        return self.follow(noise, self.text_encoder(tokens).last_hidden_state, level_times(steps, len(self.signal) - 1))


def teacher_tokenizer() -> CLIPTokenizer:
    """The tokenizer of the packaged teacher."""
    tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder_of("emoji-sd") / "tokenizer")
    return tokenizer


def teacher_captions(_: Path) -> list[str]:
    """What the packaged teacher knows."""
    return known_captions("emoji-sd")


def teacher_batches(args: Namespace, tokenizer: CLIPTokenizer, size: int) -> Images:
    """Emoji at one size, encoded by the teacher's own autoencoder."""
    import numpy as np

    captions = teacher_captions(args.work)
    images = np.load(args.work / "images.npz")["images"][: len(captions)]
    with torch.no_grad():
        latents = load("emoji-sd").vae.encoder(resized(images, size))
    return Images(latents, tokenizer, captions, no_caption=0.0)


def export(model: FourSteps, folder: Path) -> None:
    """Write the student's LoRA in half precision, as `StableDiffusionPipeline.load_lora_weights` reads it."""
    from diffusers import StableDiffusionPipeline
    from peft import get_peft_model_state_dict

    weights = {name: weight.half() for name, weight in get_peft_model_state_dict(model.unet).items()}
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=weights, safe_serialization=True)
