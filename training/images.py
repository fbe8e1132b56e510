"""Batches of latents with captions, phrased now one way, now another."""

from __future__ import annotations

import random

import torch
from torch import Tensor
from transformers import CLIPTokenizer

from training.vocabulary import TEXT_LENGTH, phrasings

PLAIN_CAPTION = 0.6  # of the samples; the others get another phrasing
NO_CAPTION = 0.1  # of the samples, for classifier-free guidance


def tokenize(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:  # (len(texts), L)
    """Token ids as the pipelines make them."""
    ids: Tensor = tokenizer(
        texts, padding="max_length", max_length=TEXT_LENGTH, truncation=True, return_tensors="pt"
    ).input_ids
    return ids


class Images:
    """Latents at one size with the token ids of every phrasing of their captions."""

    def __init__(
        self, latents: Tensor, tokenizer: CLIPTokenizer, captions: list[str], no_caption: float = NO_CAPTION
    ) -> None:
        self.latents = latents  # (len(captions), C, h, w)
        self.tokens = [tokenize(tokenizer, phrasings(caption)) for caption in captions]
        self.nothing = tokenize(tokenizer, [""])[0]
        self.no_caption = no_caption
        self.order: list[int] = []

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Latents (B, C, h, w) and token ids (B, L)."""
        chosen = [self._next() for _ in range(size)]
        return self.latents[chosen], torch.stack([self._caption(index) for index in chosen])

    def _next(self) -> int:
        """Each image once per epoch, in a new order every time."""
        if not self.order:
            self.order = random.sample(range(len(self.tokens)), len(self.tokens))
        return self.order.pop()

    def _caption(self, index: int) -> Tensor:  # (L,)
        if random.random() < self.no_caption:
            return self.nothing
        ways = self.tokens[index]
        return ways[0] if random.random() < PLAIN_CAPTION else ways[random.randrange(len(ways))]
