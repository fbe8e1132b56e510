"""Loading by name: devices, dtypes, variants, and what a pipeline can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tokenmerge as tm
from tokenmerge import zoo
from tokenmerge.errors import ConfigError, UsageError
from tokenmerge.runtime.denoisers import load_denoiser_on_meta
from tokenmerge.runtime.devices import SlowPrecisionWarning, pick_device, pick_dtype
from tokenmerge.runtime.generation import ImageRequest, check_request
from tokenmerge.runtime.pipelines import default_model, load_pipeline
from tokenmerge.runtime.tiny_random import build_tiny_random


def test_the_default_is_the_embedded_model_where_it_is_installed() -> None:
    assert default_model() == ("emoji-sd" if "emoji-sd" in zoo.list_models() else "tiny-random")


def test_the_tiny_model_is_the_same_each_time() -> None:
    first, second = build_tiny_random(), build_tiny_random()
    for part in ("unet", "vae", "text_encoder"):
        for one, other in zip(
            getattr(first, part).state_dict().values(), getattr(second, part).state_dict().values(), strict=True
        ):
            assert torch.equal(one, other)


def test_the_tiny_tokenizer_tells_prompts_apart() -> None:
    tokenizer = build_tiny_random().tokenizer
    ids = [tuple(tokenizer(text).input_ids) for text in ("red cat", "red car", "ré 灯台", "")]
    assert len(set(ids)) == 4
    assert tokenizer.decode(tokenizer("red cat").input_ids, skip_special_tokens=True).strip() == "red cat"


def test_tiny_random_says_what_it_is() -> None:
    loaded = load_pipeline("tiny-random", "cpu")
    assert loaded.random
    assert "mean nothing" in (loaded.notice or "")


def test_a_folder_with_half_precision_files_alone(tmp_path: Path) -> None:
    build_tiny_random().to(torch.float16).save_pretrained(tmp_path / "half", variant="fp16")
    loaded = load_pipeline(str(tmp_path / "half"), "cpu")
    assert loaded.notice is None
    assert loaded.pipe.unet.dtype == torch.float32


def test_dtype_and_device() -> None:
    assert pick_dtype(None, torch.device("cpu")) == torch.float32
    with pytest.warns(SlowPrecisionWarning, match="bfloat16 is for GPUs"):
        assert pick_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    assert pick_device("cpu").type == "cpu"
    assert load_pipeline("tiny-random", "cpu", "bfloat16").pipe.unet.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="which this machine does not have"):
        pick_device("cuda:99")


def test_meta_models_can_be_explained() -> None:
    handle = tm.apply(load_denoiser_on_meta("tiny-random"), tm.TileMean())
    assert handle.explain(size=(256, 256)).models[0].stacks[0].grid == (32, 32)


def test_what_a_pipeline_cannot_generate() -> None:
    loaded = load_pipeline("tiny-random", "cpu")
    check_request(loaded, ImageRequest("a cat", negative="dogs", size=(264, 256)))
    with pytest.raises(UsageError, match="not a multiple of 8"):
        check_request(loaded, ImageRequest("a cat", size=(260, 256)))


def test_transformers_need_whole_patches() -> None:
    class Patches:
        vae_scale_factor = 8

        class transformer:
            class config:
                patch_size = 1

        def __call__(self, prompt: str) -> None: ...

    from tokenmerge.runtime.pipelines import LoadedPipeline

    loaded = LoadedPipeline(Patches(), "flux-like", torch.device("cpu"), torch.float32)
    assert loaded.size_step == 16
    with pytest.raises(UsageError, match="multiple of 16 pixels: use 512 instead"):
        check_request(loaded, ImageRequest("a cat", size=(512, 520)))
    with pytest.raises(UsageError, match="flux-like takes no negative prompt"):
        check_request(loaded, ImageRequest("a cat", negative="dogs"))
