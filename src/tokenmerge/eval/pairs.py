"""Prompt-seed pairs: what every variant makes an image of."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenmerge.eval.experiment import SeedChoice


@dataclass(frozen=True)
class Pair:
    id: str  # the name of its images
    prompt: str  # as the model gets it
    seed: int
    uncut: str | None = None  # the prompt as it was in the file, where it had to be cut


def make_pairs(prompts: Sequence[str], seeds: SeedChoice, cut_of: Mapping[str, str]) -> list[Pair]:
    """Each prompt, cut as `cut_of` says, with each of its seeds. More prompts add pairs at the end and change none."""
    pairs: list[Pair] = []
    for index, prompt in enumerate(prompts):
        cut = cut_of[prompt]
        for seed in seeds_of(seeds, index):
            pairs.append(Pair(f"{len(pairs):05d}", cut, seed, prompt if cut != prompt else None))
    return pairs


def seeds_of(seeds: SeedChoice, prompt_index: int) -> tuple[int, ...]:
    """The seeds of one prompt: those listed, or sampled from the start number by hashing, the same on every machine."""
    if seeds.values:
        return seeds.values
    assert seeds.start is not None, "a run samples its start number before its pairs"
    digests = (hashlib.sha256(f"{seeds.start}/{prompt_index}/{k}".encode()).digest() for k in range(seeds.per_prompt))
    return tuple(int.from_bytes(digest[:4]) for digest in digests)


def sample_start() -> int:
    return secrets.randbelow(2**32)
