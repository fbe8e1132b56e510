"""What commands say about a run: the model, the machine, the method."""

from __future__ import annotations

import sys
from typing import Any

import torch

from tokenmerge.config.base import MergeConfig
from tokenmerge.eval.prompts import prompt_fits
from tokenmerge.runtime.generation import ImageRequest
from tokenmerge.runtime.machine import library_versions
from tokenmerge.runtime.pipelines import LoadedPipeline


def print_notice(loaded: LoadedPipeline) -> None:
    """The line that a model with random weights is one, on stderr, so that --json stays JSON."""
    if loaded.notice is not None:
        print(f"note: {loaded.notice}", file=sys.stderr)


def print_cut(loaded: LoadedPipeline, wanted: ImageRequest) -> None:
    """The line that a model will not read all of a prompt: pipelines cut it, and say so where nobody looks."""
    fits = prompt_fits(loaded.pipe)
    for name, text in (("prompt", wanted.prompt), ("negative prompt", wanted.negative)):
        if text is not None and not fits(text):
            print(f"note: the {name} is longer than {loaded.name} reads, its end is not generated.", file=sys.stderr)


def about_image(
    loaded: LoadedPipeline, wanted: ImageRequest, size: tuple[int, int], method: str, config: MergeConfig | None
) -> dict[str, Any]:
    """Everything needed to generate the image again, as plain JSON values."""
    return {
        "prompt": wanted.prompt,
        "negative": wanted.negative,
        "seed": wanted.seed,
        "steps": wanted.steps,
        "size": list(size),
        "guidance": wanted.guidance,
        "model": {
            "name": loaded.name,
            "random_weights": loaded.random,
            "device": str(loaded.device),
            "dtype": str(loaded.dtype).removeprefix("torch."),
        },
        "method": method,
        "config": None if config is None else config.to_dict(),
        "versions": library_versions(),
        "threads": torch.get_num_threads(),
    }
