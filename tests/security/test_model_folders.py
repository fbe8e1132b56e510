"""A model folder made by a stranger: its code is never run, its pickles are not opened, its sizes have bounds."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmerge.cli.main import main
from tokenmerge.errors import ModelLoadError, TokenMergeError
from tokenmerge.runtime.denoisers import load_denoiser, load_denoiser_on_meta
from tokenmerge.runtime.pipelines import load_pipeline

WEIGHTS = "unet/diffusion_pytorch_model"


def load(folder: Path, allow_pickle: bool = False) -> Any:
    return load_pipeline(str(folder), "cpu", allow_pickle=allow_pickle).pipe


def load_for_bench(folder: Path, allow_pickle: bool = False) -> Any:
    return load_denoiser(str(folder), torch.float32, allow_pickle)


def load_shapes(folder: Path) -> Any:
    return load_denoiser_on_meta(str(folder))


def change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def code(ran: Path) -> str:
    return f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n"


class RunsWhenOpened:
    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> Any:
        return open, (str(self.ran), "w")


def test_the_harmful_pickle_is_harmful(ran: Path) -> None:
    """Or the tests below would show nothing."""
    pickle.loads(pickle.dumps(RunsWhenOpened(ran))).close()
    assert ran.exists()


# -- pickles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{WEIGHTS}.bin", "unet/pytorch_model.bin", "unet/model.ckpt", "unet/model.pt"])
def test_pickles_are_refused_and_not_opened(model: Path, ran: Path, name: str) -> None:
    (model / f"{WEIGHTS}.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(RunsWhenOpened(ran)))
    for loads, folder in ((load, model), (load_for_bench, model), (load_for_bench, model / "unet")):
        with pytest.raises(ModelLoadError, match=r"is a pickle, which can run code.*--allow-pickle"):
            loads(folder)
    assert not ran.exists()


def test_pickles_beside_safetensors_are_not_opened(model: Path, ran: Path) -> None:
    for part, name in (("unet", "diffusion_pytorch_model.bin"), ("text_encoder", "pytorch_model.bin")):
        (model / part / name).write_bytes(pickle.dumps(RunsWhenOpened(ran)))
    for loads, folder in ((load, model), (load_for_bench, model), (load_for_bench, model / "unet")):
        loads(folder)
        loads(folder, allow_pickle=True)
    assert not ran.exists()


def test_pickles_of_people_one_trusts_can_be_allowed(model: Path, tmp_path: Path, capsys: Any) -> None:
    unet = load(model).unet
    (model / f"{WEIGHTS}.safetensors").unlink()
    torch.save(unet.state_dict(), model / f"{WEIGHTS}.bin")
    again = load(model, allow_pickle=True).unet
    assert all(torch.equal(a, b) for a, b in zip(unet.parameters(), again.parameters(), strict=True))
    words = ["generate", "a cat", "--model", str(model), "--size", "64", "--steps", "1", "--set", "min_tokens=16"]
    words += ["--out", str(tmp_path / "cat.png")]
    assert main(words) == 2
    assert "--allow-pickle" in capsys.readouterr().err
    assert main([*words, "--allow-pickle"]) == 0


# -- code ----------------------------------------------------------------------------------------------------------


def own_pipeline(model: Path, ran: Path) -> None:
    change_json(model / "model_index.json", _class_name=["own", "Own"])
    (model / "own.py").write_text(code(ran))


def pipeline_in_the_usual_file(model: Path, ran: Path) -> None:
    change_json(model / "model_index.json", _class_name="Own")
    (model / "pipeline.py").write_text(code(ran))


def part_with_a_file(model: Path, ran: Path) -> None:
    change_json(model / "model_index.json", unet=["own", "Own"])
    (model / "unet" / "own.py").write_text(code(ran))


def part_from_an_installed_module(model: Path, ran: Path) -> None:
    """Importing runs what a module has at its top, whichever module a stranger thinks of."""
    elsewhere = model.parent / "installed"
    elsewhere.mkdir()
    (elsewhere / "own_installed_module.py").write_text(code(ran))
    sys.path.append(str(elsewhere))
    change_json(model / "model_index.json", unet=["own_installed_module", "Own"])


def part_that_is_looked_up(model: Path, ran: Path) -> None:
    change_json(model / "model_index.json", unet=["diffusers", "AutoModel"])
    change_json(model / "unet" / "config.json", auto_map={"AutoModel": "own.Own"})
    (model / "unet" / "own.py").write_text(code(ran))


def text_encoder_that_is_looked_up(model: Path, ran: Path) -> None:
    change_json(model / "model_index.json", text_encoder=["transformers", "AutoModel"])
    change_json(model / "text_encoder" / "config.json", auto_map={"AutoModel": "own.Own"}, model_type="own")
    (model / "text_encoder" / "own.py").write_text(code(ran))


def tokenizer_that_is_looked_up(model: Path, ran: Path) -> None:
    change_json(model / "model_index.json", tokenizer=["transformers", "AutoTokenizer"])
    change_json(model / "tokenizer" / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    (model / "tokenizer" / "own.py").write_text(code(ran))


TRICKS = [
    own_pipeline,
    pipeline_in_the_usual_file,
    part_with_a_file,
    part_from_an_installed_module,
    part_that_is_looked_up,
    text_encoder_that_is_looked_up,
    tokenizer_that_is_looked_up,
]


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
@pytest.mark.parametrize("allow_pickle", [False, True])
def test_code_that_comes_with_a_model_is_never_run(trick: Any, model: Path, ran: Path, allow_pickle: bool) -> None:
    trick(model, ran)
    for loads in (load, load_for_bench):
        with pytest.raises(ModelLoadError, match="code that comes with a model is never run"):
            loads(model, allow_pickle)
    assert not ran.exists()


def test_a_unet_by_itself_cannot_bring_code_either(model: Path, ran: Path) -> None:
    part_that_is_looked_up(model, ran)
    with pytest.raises(ModelLoadError, match="code that comes with a model is never run"):
        load_for_bench(model / "unet")
    assert main(["bench", "--model", str(model / "unet"), "--repeats", "1"]) == 2
    assert not ran.exists()


@pytest.mark.parametrize("part", ["../unet", "unet/..", "/tmp", ""])
def test_parts_cannot_be_elsewhere(model: Path, part: str) -> None:
    change_json(model / "model_index.json", **{part: ["diffusers", "UNet2DConditionModel"]})
    with pytest.raises(ModelLoadError):
        load(model)


def test_a_model_of_the_hub_is_looked_at_as_a_folder_is(model: Path, ran: Path, tmp_path: Path) -> None:
    """One that was fetched before is in the hub's cache; nothing is asked of the network."""
    part_with_a_file(model, ran)
    home = tmp_path / "home"
    snapshot = home / "hub" / "models--stranger--model" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    model.rename(snapshot)
    (home / "hub" / "models--stranger--model" / "refs").mkdir()
    (home / "hub" / "models--stranger--model" / "refs" / "main").write_text("0" * 40)
    words = [sys.executable, "-m", "tokenmerge.cli.main", "generate", "a cat", "--model", "stranger/model"]
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert done.returncode == 2, done.stderr
    # diffusers itself refuses some of it while fetching.
    assert "is never run" in done.stderr or "trust_remote_code" in done.stderr
    assert not ran.exists()


# -- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"layers_per_block": 10**9},
        {"transformer_layers_per_block": [1, 10**6]},
        {"sample_size": 10**6},
        {"block_out_channels": [32] * 100_000},
        {"cross_attention_dim": 10**12},
        {"deep": {"er": {"num_layers": 10**9}}},
    ],
    ids=lambda values: next(iter(values)),
)
def test_sizes_have_bounds(model: Path, values: dict[str, Any]) -> None:
    change_json(model / "unet" / "config.json", **values)
    for loads in (load, load_for_bench, load_shapes):
        with pytest.raises(ModelLoadError, match=r"asks for [\d,]+ .*fetch it again"):
            loads(model)


@pytest.mark.parametrize("file", ["model_index.json", "unet/config.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"{" + b" " * 1_000_001 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[]",
        b"",
        b"\xff\xfe",
        b"null",
        b'{"layers_per_block": ' + b"9" * 5000 + b"}",
    ],
    ids=["large", "deep list", "deep table", "list", "empty", "not text", "null", "many digits"],
)
def test_any_json_is_a_sentence(model: Path, file: str, content: bytes) -> None:
    (model / file).write_bytes(content)
    for loads in (load, load_for_bench, load_shapes):
        with pytest.raises(TokenMergeError):
            loads(model)


@pytest.mark.parametrize("origin", ["UNet2DConditionModel", [], ["diffusers"], [1, 2], {"a": 1}, None])
def test_any_index_is_a_sentence(model: Path, origin: Any) -> None:
    change_json(model / "model_index.json", unet=origin)
    for loads in (load, load_for_bench, load_shapes):
        with pytest.raises(TokenMergeError):
            loads(model)


@pytest.mark.parametrize("name", ["__version__", "DiffusionPipeline", "DDIMScheduler", "utils", "NoSuchModel"])
def test_what_is_no_model_class_is_a_sentence(model: Path, name: str) -> None:
    change_json(model / "model_index.json", unet=["diffusers", name])
    with pytest.raises(TokenMergeError):
        load_denoiser_on_meta(str(model))
