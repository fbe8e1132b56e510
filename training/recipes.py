"""What differs between the models: their network, words, training images and autoencoder. One entry a model."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CLIPTokenizer

from tokenmerge.zoo.folders import WEIGHTS
from training import distil, photographs
from training.emoji_sd import EmojiSD
from training.images import Images
from training.photo_flux import PhotoFlux
from training.photographs import Photographs
from training.vocabulary import build_tokenizer, phrasings


def emoji_captions(work: Path) -> list[str]:
    """Captions of all emoji in the work folder."""
    captions: list[str] = json.loads((work / "captions.json").read_text())
    return captions


def emoji_batches(args: Namespace, tokenizer: CLIPTokenizer, size: int) -> Images:
    """Emoji latents at one size."""
    captions = emoji_captions(args.work)[: args.images]
    return Images(torch.load(args.work / f"latents_{size}.pt")[: len(captions)], tokenizer, captions)


def photo_batches(args: Namespace, tokenizer: CLIPTokenizer, size: int) -> Photographs:
    """Latents of photographs at one frame size."""
    return Photographs(args.work, tokenizer, size, args.window, args.wide, bool(args.align), args.clear, args.often)


@dataclass(frozen=True)
class Recipe:
    """How one model is built, trained and decoded.

    Args:
        name: Name of the model.
        network: Module with `loss(*batch, bias)` and `sample(noise, tokens, nothing, steps, guidance)`.
        captions: Captions the model is trained on, from the work folder; the first of every photograph's wordings.
        texts: All wordings of the captions, from the work folder. The tokenizer knows every word of them.
        batches: Training data at one size; its `batch(count)` returns the arguments of `loss`.
        autoencoder: Folder of the autoencoder, below the work folder unless absolute.
        teacher: Whether the model is distilled from a packaged one and shares its words.
    """

    name: str
    network: Callable[[CLIPTokenizer], nn.Module]
    captions: Callable[[Path], list[str]]
    texts: Callable[[Path], list[str]]
    batches: Callable[[Namespace, CLIPTokenizer, int], Any]
    autoencoder: str
    teacher: bool = False

    def tokenizer_folder(self, work: Path) -> Path:
        """Where the tokenizer is kept."""
        return work / f"{self.name}-tokenizer"

    def tokenizer(self, work: Path) -> CLIPTokenizer:
        """Tokenizer that knows every word of the training captions.

        Built once and kept in the work folder, because training a byte-pair tokenizer twice numbers its tokens
        differently, and a checkpoint is only of use with the numbers it was trained with.
        """
        if self.teacher:
            return distil.teacher_tokenizer()
        folder = self.tokenizer_folder(work)
        if not folder.exists():
            build_tokenizer(self.texts(work)).save_pretrained(folder)
        kept: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder)
        return kept


_ALL = (
    Recipe(
        name="emoji-sd",
        network=EmojiSD,
        captions=emoji_captions,
        texts=lambda work: [text for caption in emoji_captions(work) for text in phrasings(caption)],
        batches=emoji_batches,
        autoencoder="autoencoder",
    ),
    Recipe(
        name="photo-flux",
        network=PhotoFlux,
        captions=photographs.plain_captions,
        texts=lambda work: photographs.all_texts(photographs.learnt_rows(work)),
        batches=photo_batches,
        autoencoder="photographs/autoencoder",
    ),
    Recipe(
        name="emoji-sd-4",
        network=distil.FourSteps,
        captions=distil.teacher_captions,
        texts=distil.teacher_captions,
        batches=distil.teacher_batches,
        autoencoder=str(WEIGHTS / "emoji-sd" / "vae"),
        teacher=True,
    ),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
