"""The ten lines for SD.Next in docs/comfyui.md, called on a diffusers pipeline as SD.Next would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmerge.runtime.tiny_random import build_tiny_random

DOCS = Path(__file__).parents[2] / "docs" / "comfyui.md"


@pytest.fixture
def note() -> dict[str, Any]:
    [code] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def generated(pipe: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    latents = pipe("an apple", num_inference_steps=3, height=256, width=256, generator=generator, output_type="latent")
    images: torch.Tensor = latents.images
    return images


def test_before_and_after_each_generation(note: dict[str, Any]) -> None:
    pipe = build_tiny_random()
    pipe.set_progress_bar_config(disable=True)
    plain = generated(pipe)
    for preset in ("balanced", "fast"):  # applied twice in a row: settings may change between generations
        note["apply_token_merging"](pipe, preset)
        assert not torch.equal(generated(pipe), plain)
    note["remove_token_merging"](pipe)
    assert torch.equal(generated(pipe), plain)


def test_a_wrong_preset_is_said_and_not_raised(note: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    note["apply_token_merging"](build_tiny_random(), "fastest")
    assert "Token merge: preset 'fastest' is not known" in capsys.readouterr().out
