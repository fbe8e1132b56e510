"""An untrained `photo-flux`, exported as the trained one is, in the stock pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import tokenmerge
from tokenmerge.zoo.loading import load_folder


def test_native_size_has_1024_image_tokens(fresh_photo: Path) -> None:
    pipe = load_folder(fresh_photo)
    seen: list[int] = []
    pipe.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["hidden_states"].shape[1]), with_kwargs=True
    )
    image = pipe("red heart", num_inference_steps=1).images[0]
    assert image.size == (256, 256)
    assert seen == [1024]


def test_merging_changes_the_image_and_removing_it_restores_it(fresh_photo: Path) -> None:
    pipe = load_folder(fresh_photo)
    for parameter in pipe.transformer.parameters():  # blocks start as the identity, where merging has nothing to change
        torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(parameter.numel()))

    def generate() -> np.ndarray:
        settings = {"num_inference_steps": 2, "height": 128, "width": 128, "output_type": "np"}
        images: np.ndarray = pipe("cat face", generator=torch.Generator().manual_seed(0), **settings).images
        return images

    before = generate()
    with tokenmerge.merged(pipe, tokenmerge.ToMA(ratio=0.5, min_tokens=0)):
        assert not np.array_equal(generate(), before)
    assert np.array_equal(generate(), before)
