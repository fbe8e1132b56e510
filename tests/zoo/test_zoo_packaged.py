"""The weights in the package, where it has them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

from tokenmerge import zoo
from tokenmerge.zoo.folders import verify

MODELS = zoo.list_models()
pytestmark = pytest.mark.skipif(not MODELS, reason="no weights in this installation")


EMOJI_STEPS = {"emoji-sd": 8, "emoji-sd-4": 4}


def test_all_together_stay_under_sixty_megabytes_in_a_wheel() -> None:
    files = {file for name in MODELS for file in zoo.folder_of(name).rglob("*") if file.is_file()}
    assert sum(len(zlib.compress(file.read_bytes())) for file in files) < 60e6


@pytest.mark.parametrize("name", MODELS)
def test_files_are_whole(name: str) -> None:
    verify(zoo.folder_of(name))


@pytest.mark.parametrize("name", [name for name in MODELS if name in EMOJI_STEPS])
def test_a_red_heart_is_red_on_white(name: str) -> None:
    pipe = zoo.load(name)
    image = pipe(
        "red heart", num_inference_steps=EMOJI_STEPS[name], generator=torch.Generator().manual_seed(0), output_type="np"
    ).images[0]
    corners = image[[4, 4, -5, -5], [4, -5, 4, -5]]
    assert corners.mean() > 0.85
    red, green, blue = np.median(image[110:146, 110:146], axis=(0, 1))
    assert red > 0.6
    assert max(green, blue) < red - 0.3


@pytest.mark.skipif("photo-flux" not in MODELS, reason="no weights of photo-flux in this installation")
def test_lemons_are_yellow_and_tomatoes_red() -> None:
    pipe = zoo.load("photo-flux")

    def mean_colour(prompt: str) -> list[float]:
        settings = {"num_inference_steps": 6, "height": 128, "width": 128, "output_type": "np"}
        settings |= {"negative_prompt": "", "true_cfg_scale": 3.0}
        image: np.ndarray = pipe(prompt, generator=torch.Generator().manual_seed(0), **settings).images[0]
        return [float(channel) for channel in image.mean(axis=(0, 1))]

    red, green, blue = mean_colour("lemons")
    assert min(red, green) > blue + 0.2
    red, green, blue = mean_colour("vine tomatoes")
    assert red > max(green, blue) + 0.2
