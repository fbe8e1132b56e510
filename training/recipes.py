"""What differs between the models: their network, words, training images and autoencoder. One entry a model."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import CLIPTokenizer

from training import photographs
from training.emoji_flux import EmojiFlux
from training.emoji_sd import EmojiSD
from training.photo_flux import PhotoFlux
from training.photographs import Photographs
from training.pictures import Pictures
from training.vocabulary import build_tokenizer


def emoji_captions(work: Path) -> list[str]:
    """Captions of all emoji in the work folder."""
    captions: list[str] = json.loads((work / "captions.json").read_text())
    return captions


def emoji_batches(args: Namespace, tokenizer: CLIPTokenizer, size: int) -> Pictures:
    """Emoji latents at one size."""
    return Pictures(args.work, tokenizer, emoji_captions(args.work)[: args.pictures], size)


def photo_batches(args: Namespace, tokenizer: CLIPTokenizer, size: int) -> Photographs:
    """Latents of photographs at one frame size."""
    return Photographs(args.work, tokenizer, size, args.window, args.wide)


@dataclass(frozen=True)
class Recipe:
    """How one model is built, trained and decoded.

    Args:
        network: Module with `loss(*batch, bias)` and `sample(noise, tokens, nothing, steps, guidance)`.
        captions: Captions the model is trained on, from the work folder; the first of every photograph's wordings.
        tokenizer: Tokenizer that knows every word of the training captions, from the work folder.
        batches: Training data at one size; its `batch(count)` returns the arguments of `loss`.
        autoencoder: Folder of the autoencoder below the work folder.
    """

    network: Callable[[CLIPTokenizer], nn.Module]
    captions: Callable[[Path], list[str]]
    tokenizer: Callable[[Path], CLIPTokenizer]
    batches: Callable[[Namespace, CLIPTokenizer, int], Any]
    autoencoder: str


def _emoji(network: Callable[[CLIPTokenizer], nn.Module]) -> Recipe:
    return Recipe(
        network=network,
        captions=emoji_captions,
        tokenizer=lambda work: build_tokenizer(emoji_captions(work)),
        batches=emoji_batches,
        autoencoder="autoencoder",
    )


RECIPES: dict[str, Recipe] = {
    "emoji-sd": _emoji(EmojiSD),
    "emoji-flux": _emoji(EmojiFlux),
    "photo-flux": Recipe(
        network=PhotoFlux,
        captions=photographs.plain_captions,
        tokenizer=lambda work: build_tokenizer(photographs.all_texts(photographs.read_rows(work)), lambda text: [text]),
        batches=photo_batches,
        autoencoder="photographs/autoencoder",
    ),
}
