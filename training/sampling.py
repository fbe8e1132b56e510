"""Draws pictures from a checkpoint, before anything is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPTokenizer

from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training.emoji_flux import EmojiFlux
from training.emoji_sd import EmojiSD
from training.pictures import tokenize
from training.train import MODELS
from training.vocabulary import build_tokenizer


def load_averaged(work: Path, name: str) -> tuple[EmojiSD | EmojiFlux, CLIPTokenizer, dict[str, Any]]:
    """The model with its averaged weights, its tokenizer, and how far training was."""
    tokenizer = build_tokenizer(json.loads((work / "captions.json").read_text()))
    state = torch.load(work / f"{name}.pt", weights_only=True, mmap=True)
    model: EmojiSD | EmojiFlux = MODELS[name](tokenizer)
    model.eval()
    model.load_state_dict(state["average"], strict=False)
    return model, tokenizer, state["done"]


def to_images(autoencoder: PatchAutoencoder, latents: Tensor) -> list[Image.Image]:
    """Latents (B, C, h, w) -> B images."""
    with torch.no_grad():
        pixels = autoencoder.decode(latents).sample.clamp(-1, 1).add(1).mul(127.5)  # type: ignore[union-attr]
    return [Image.fromarray(picture) for picture in pixels.round().byte().permute(0, 2, 3, 1).numpy()]


def sample_captions(
    work: Path, name: str, captions: list[str], size: int, steps: int = 20, guidance: float = 3.0, seed: int = 0
) -> tuple[list[Image.Image], dict[str, Any]]:
    """One image for each caption, all from the noise of one seed, and how far training was."""
    model, tokenizer, done = load_averaged(work, name)
    autoencoder = PatchAutoencoder.from_pretrained(work / "autoencoder")
    shape = (1, autoencoder.config.latent_channels, size // 8, size // 8)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).repeat(len(captions), 1, 1, 1)
    latents = model.sample(noise, tokenize(tokenizer, captions), tokenize(tokenizer, [""]), steps, guidance)
    return to_images(autoencoder, latents), done
