"""Loading: by our function and by plain diffusers, in float32, at both sizes, and refused when damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tokenmerge import zoo
from tokenmerge.errors import ModelLoadError
from tokenmerge.zoo import folders
from tokenmerge.zoo.loading import load_folder


@pytest.fixture
def copy(fresh_sd: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fresh_sd, tmp_path / "emoji-sd"))


@pytest.mark.parametrize("name", ["fresh_sd", "fresh_photo"])
def test_every_part_is_float32_though_the_files_are_half(name: str, request: pytest.FixtureRequest) -> None:
    import torch
    from safetensors.torch import load_file

    folder = request.getfixturevalue(name)
    parts = [part for part in load_folder(folder).components.values() if isinstance(part, torch.nn.Module)]
    assert {p.dtype for part in parts for p in part.parameters()} == {torch.float32}
    files = list(folder.rglob("*.safetensors"))
    assert len(files) == len(parts)
    assert {tensor.dtype for file in files for tensor in load_file(file).values()} == {torch.float16}


@pytest.mark.parametrize("side", [256, 512])
@pytest.mark.parametrize("name", ["fresh_sd", "fresh_photo"])
def test_draws_at_both_sizes(name: str, side: int, request: pytest.FixtureRequest) -> None:
    pipe = load_folder(request.getfixturevalue(name))
    image = pipe("red heart", height=side, width=side, num_inference_steps=1).images[0]
    assert image.size == (side, side)


@pytest.mark.parametrize("name", ["fresh_sd", "fresh_photo"])
def test_native_size_is_256(name: str, request: pytest.FixtureRequest) -> None:
    assert load_folder(request.getfixturevalue(name))("red heart", num_inference_steps=1).images[0].size == (256, 256)


def test_plain_diffusers_generates_the_same_image(fresh_sd: Path) -> None:
    import numpy as np
    import torch
    from diffusers import DiffusionPipeline

    images = []
    for pipe in (load_folder(fresh_sd), DiffusionPipeline.from_pretrained(fresh_sd).to(torch.float32)):
        generator = torch.Generator().manual_seed(3)
        images.append(pipe("cat face", num_inference_steps=2, generator=generator, output_type="np").images)
    np.testing.assert_allclose(images[0], images[1], atol=1e-5)


def test_plain_diffusers_loads_in_a_fresh_process(fresh_sd: Path, fresh_photo: Path) -> None:
    code = (
        "import sys, tokenmerge; from diffusers import DiffusionPipeline;"
        "print(*[type(DiffusionPipeline.from_pretrained(folder).vae).__name__ for folder in sys.argv[1:]])"
    )
    words = [sys.executable, "-c", code, str(fresh_sd), str(fresh_photo)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PatchAutoencoder", "PatchAutoencoder"]


def test_plain_diffusers_draws_with_flux(fresh_photo: Path) -> None:
    import torch
    from diffusers import DiffusionPipeline, FluxPipeline

    pipe = DiffusionPipeline.from_pretrained(fresh_photo).to(torch.float32)
    assert isinstance(pipe, FluxPipeline)
    image = pipe("cat face", height=256, width=256, num_inference_steps=1, max_sequence_length=16).images[0]
    assert image.size == (256, 256)


def test_flux_reads_as_many_text_tokens_as_it_was_trained_with(fresh_photo: Path) -> None:
    pipe = load_folder(fresh_photo)
    text, _, text_ids = pipe.encode_prompt("red heart", "red heart")
    assert text.shape[1] == len(text_ids) == pipe.tokenizer.model_max_length == 16


def test_a_saved_pipeline_loads_again(fresh_sd: Path, tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    load_folder(fresh_sd).save_pretrained(tmp_path)
    assert DiffusionPipeline.from_pretrained(tmp_path).tokenizer("red heart").input_ids[1:-1] != []


def test_one_flipped_bit_is_noticed(copy: Path) -> None:
    weights = next((copy / "unet").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1000] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ModelLoadError, match=rf"{weights.name} is damaged.*install tokenmerge again\.$"):
        load_folder(copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is missing"):
        load_folder(copy)


@pytest.mark.parametrize("content", [None, "{"])
def test_unreadable_checksums_are_refused(copy: Path, content: str | None) -> None:
    record = copy / folders.CHECKSUMS
    record.unlink() if content is None else record.write_text(content)
    with pytest.raises(ModelLoadError, match="missing or unreadable"):
        load_folder(copy)


def test_checksums_cover_every_file(fresh_sd: Path) -> None:
    recorded = set(json.loads((fresh_sd / folders.CHECKSUMS).read_text()))
    files = {f.relative_to(fresh_sd).as_posix() for f in fresh_sd.rglob("*") if f.is_file()}
    assert recorded == files - {folders.CHECKSUMS}


def test_a_wrong_name_gets_a_suggestion() -> None:
    with pytest.raises(ModelLoadError, match=r"no embedded model 'emoji-sdd'.*did you mean emoji-sd\?"):
        zoo.load("emoji-sdd")


def test_absent_weights_are_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folders, "WEIGHTS", tmp_path)
    assert zoo.list_models() == []
    with pytest.raises(ModelLoadError, match="weights of 'photo-flux' are not in this installation"):
        zoo.load("photo-flux")


def test_load_finds_the_model_by_name(monkeypatch: pytest.MonkeyPatch, fresh_sd: Path) -> None:
    monkeypatch.setattr(folders, "WEIGHTS", fresh_sd.parent)
    assert zoo.list_models() == ["emoji-sd"]
    assert zoo.load("emoji-sd").unet.config.sample_size == 32
    assert "cat face" in zoo.known_captions("emoji-sd")


def test_loading_says_nothing(fresh_sd: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_folder(fresh_sd)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_import_stays_light() -> None:
    code = "import sys, tokenmerge.zoo; sys.exit('diffusers' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
