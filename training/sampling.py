"""Generates images from a checkpoint, before anything is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from transformers import CLIPTokenizer

from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training.images import tokenize
from training.quick import compile_blocks, half_precision, quick_operations
from training.recipes import RECIPES

BATCH = 8  # captions at once; more need memory and are no faster


def load_averaged(work: Path, name: str) -> tuple[Any, CLIPTokenizer, dict[str, Any]]:
    """The model with its averaged weights, its tokenizer, and how far training was."""
    recipe = RECIPES[name]
    tokenizer = recipe.tokenizer(work)
    state = torch.load(work / f"{name}.pt", weights_only=True, mmap=True)
    model = recipe.network(tokenizer)
    model.eval()
    model.load_state_dict(state["average"], strict=False)
    return model, tokenizer, state["done"]


def to_images(autoencoder: PatchAutoencoder, latents: Tensor) -> list[Image.Image]:
    """Latents (B, C, h, w) -> B images."""
    with torch.no_grad():
        pixels = autoencoder.decode(latents).sample.clamp(-1, 1).add(1).mul(127.5)  # type: ignore[union-attr]
    return [Image.fromarray(image) for image in pixels.round().byte().permute(0, 2, 3, 1).numpy()]


class Sampler:
    """A checkpoint that generates images; `done` says how far its training was.

    `half` computes in bfloat16. So does `compiled`, with compiled blocks, for Flux and many images.
    """

    def __init__(self, work: Path, name: str, half: bool = False, compiled: bool = False) -> None:
        self.half, self.compiled = half, compiled
        self.model, self.tokenizer, self.done = load_averaged(work, name)
        self.autoencoder = PatchAutoencoder.from_pretrained(work / RECIPES[name].autoencoder)
        if compiled:
            compile_blocks(self.model.transformer)

    def generate(
        self,
        captions: list[str],
        size: int,
        steps: int = 20,
        guidance: float = 3.0,
        first_seed: int = 0,
        same_noise: bool = False,
    ) -> list[Image.Image]:
        """One image for each caption; seeds count up from `first_seed` unless all share the noise of that one."""
        side = size // self.autoencoder.patch
        shape = (1, self.autoencoder.config.latent_channels, side, side)
        nothing, images = tokenize(self.tokenizer, [""]), []
        for start in tqdm(range(0, len(captions), BATCH), desc="sampling", disable=None):
            text = tokenize(self.tokenizer, captions[start : start + BATCH])
            seeds = [first_seed + (0 if same_noise else start + row) for row in range(len(text))]
            noise = torch.cat([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
            with quick_operations(self.half and not self.compiled), half_precision(self.compiled):
                latents = self.model.sample(noise, text, nothing, steps, guidance)
            images += to_images(self.autoencoder, latents.float())
        return images
