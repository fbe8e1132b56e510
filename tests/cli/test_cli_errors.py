"""Everything a user can get wrong: one sentence that says what to do, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_runs import SMALL, Outcome, Run


def assert_sentence(outcome: Outcome, *said: str) -> None:
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("tokenmerge: ")
    assert last.endswith((".", "?"))
    for words in said:
        assert words in last


@pytest.mark.parametrize("command", ["generate", "compare"])
@pytest.mark.parametrize("words", [(), ("",), ("  ",)])
def test_no_prompt(run: Run, command: str, words: tuple[str, ...]) -> None:
    assert_sentence(run(command, *words, *SMALL), "no prompt was given", f'tokenmerge {command} "red apple"')


@pytest.mark.parametrize("command", ["generate", "compare", "explain"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ratio", "0"), "ratio is 0: it is the fraction of tokens merged away"),
        (("--ratio", "1"), "ratio is 1"),
        (("--ratio", "-1"), "ratio is -1"),
        (("--ratio", "1.5"), "ratio is 1.5"),
        (("--ratio", "nan"), "ratio is 'nan'"),
        (("--ratio", "NaN"), "ratio is nan"),
        (("--ratio", "half"), "ratio is 'half'"),
        (("--ratio", "0.5", "--set", "ratio=0.5"), "given twice"),
        (("--method", "tomma"), "did you mean toma?"),
        (("--method", "zzz"), "use one of quality, balanced, fast, tile-mean, "),
        (("--method", "toma", "--set", "region=circle"), "use 'tile', 'stripe', 'tile+global'"),
        (("--method", "toma", "--set", "regoin=tile"), "did you mean region?"),
        (("--method", "Fast"), "did you mean fast?"),
        (("--set", "region"), "OPTION=VALUE"),
        (("--set", "parts=self,feet"), "'self', 'cross', 'mlp'"),
        (("--size", "big"), "WIDTHxHEIGHT"),
        (("--size", "500x500"), "not a multiple of 8 pixels: use 496 instead"),
        (("--size", "0x512"), "1 to 8192"),
    ],
)
def test_wrong_method_or_size(run: Run, command: str, words: tuple[str, ...], said: str) -> None:
    prompt = () if command == "explain" else ("a cat",)
    assert_sentence(run(command, *prompt, "--model", "tiny-random", *words), said)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", ["generate", "compare"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "0"), "--steps is '0': it takes a whole number from 1 to 1000"),
        (("--steps", "-5"), "--steps is '-5'"),
        (("--steps", "few"), "--steps is 'few'"),
        (("--seed", "-1"), "--seed is '-1': it takes a whole number from 0 to 4294967295"),
        (("--seed", "99999999999999999999"), "--seed is '99999999999999999999'"),
        (("--guidance", "nan"), "--guidance is 'nan'"),
    ],
)
def test_wrong_image(run: Run, command: str, words: tuple[str, ...], said: str) -> None:
    assert_sentence(run(command, "a cat", *SMALL, *words), said)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "abacus"), "device is 'abacus', which this machine does not have: use cpu"),
        (("--device", "meta"), "nothing can be computed"),
        (("--dtype", "int3"), "use one of float32, float16, bfloat16"),
    ],
)
def test_wrong_device_or_dtype(run: Run, words: tuple[str, ...], said: str) -> None:
    assert_sentence(run("generate", "a cat", *SMALL, *words), said)


def test_method_none_is_for_generate_alone(run: Run) -> None:
    assert_sentence(run("compare", "a cat", *SMALL, "--method", "none"), "this command is about merging")
    assert_sentence(run("explain", "--method", "none"), "this command is about merging: use one of quality, ")
    assert_sentence(run("generate", "a cat", *SMALL, "--method", "none", "--ratio", "0.5"), "leave out --ratio")


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_nothing_can_be_written_there(run: Run, command: str) -> None:
    Path("file").write_text("in the way")
    out = "file/inside/image.png" if command == "generate" else "file/inside"
    assert_sentence(run(command, "a cat", *SMALL, "--out", out), "cannot write into file", "--out")


def test_a_file_that_is_not_there_is_named_without_what_python_puts_around_it(run: Run) -> None:
    for option in ("--config", "--keep"):
        outcome = run("generate", "a cat", *SMALL, option, "nowhere")
        assert_sentence(outcome, f"{option} nowhere cannot be read", "no such file or directory")
        assert "Errno" not in outcome.err


def test_a_saved_method_under_its_name_on_the_command_line(run: Run) -> None:
    Path("config.json").write_text('{"method": "toma"}')
    assert_sentence(run("explain", "--config", "config.json"), "did you mean 'ToMA'?")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("stable-diffusion-xl", "did you mean sdxl?"),
        ("Stable-Diffusion-3.5", "did you mean sd35-medium?"),
        ("https://huggingface.co/org/model", "give the model's id on the hub, org/model"),
    ],
)
def test_a_model_by_its_title_or_address(run: Run, model: str, said: str) -> None:
    assert_sentence(run("explain", "--model", model), said)


def test_a_submission_is_a_json_file(run: Run) -> None:
    assert_sentence(run("bench", "--model", "tiny-random", "--submit", "x.txt"), "must end in .json")


def test_not_an_image_type(run: Run) -> None:
    assert_sentence(run("generate", "a cat", *SMALL, "--out", "image.docx"), ".png")


def test_repeats(run: Run) -> None:
    assert_sentence(run("compare", "a cat", *SMALL, "--repeats", "0"), "--repeats is '0'")


def test_batch(run: Run) -> None:
    assert_sentence(run("explain", "--batch", "0"), "--batch is '0'")


@pytest.mark.parametrize("command", ["generate", "compare", "explain"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--set", "tile=99,99"),
            "tile 99 x 99 is larger than the 32 x 32 grid of tokens: use a tile of at most 32 x 32",
        ),
        (("--set", "min_tokens=100000"), "fewer than min_tokens=100000). Use a larger image"),
        (("--set", "skip_blocks=nowhere.*"), "which matches no block"),
    ],
)
def test_what_only_the_model_can_tell(run: Run, command: str, words: tuple[str, ...], said: str) -> None:
    prompt = () if command == "explain" else ("a cat", "--steps", "1")
    assert_sentence(run(command, *prompt, "--model", "tiny-random", "--size", "256", *words), said)


@pytest.mark.parametrize("command", ["generate", "explain"])
@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "nowhere", "a/b/c"])
def test_a_missing_model_folder(run: Run, command: str, name: str) -> None:
    prompt = () if command == "explain" else ("a cat",)
    assert_sentence(run(command, *prompt, "--model", name), f"there is no model folder {name}", "check the path")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name(run: Run, name: str) -> None:
    assert_sentence(run("explain", "--model", name), "no model is named: give a folder")


def test_a_folder_that_is_no_pipeline(run: Run, tmp_path: Path) -> None:
    assert_sentence(run("generate", "a cat", "--model", str(tmp_path)), "has no model_index.json")


def test_a_file_that_is_no_folder(run: Run) -> None:
    Path("model.safetensors").write_bytes(b"")
    assert_sentence(run("generate", "a cat", "--model", "./model.safetensors"), "is a file: give the folder")


def test_a_hub_that_cannot_be_reached(run: Run) -> None:
    outcome = run("generate", "a cat", "--model", "nobody/nothing")
    assert_sentence(outcome, "nobody/nothing could not be fetched from the hub", "give a local folder")


def test_an_architecture_has_no_weights(run: Run) -> None:
    assert_sentence(run("generate", "a cat", "--model", "sdxl"), "sdxl names an architecture")


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "pointer"])
def test_a_corrupt_weights_file(run: Run, pipeline_copy: Path, damage: str) -> None:
    weights = pipeline_copy / "unet" / "diffusion_pytorch_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "garbage": b"\xff" * 1000,
            "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        }[damage]
    )
    outcome = run("generate", "a cat", *SMALL, "--model", str(pipeline_copy))
    assert_sentence(outcome, str(weights), "is damaged", "git lfs pull" if damage == "pointer" else "fetch it again")


def test_a_part_that_is_missing(run: Run, pipeline_copy: Path) -> None:
    (pipeline_copy / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    outcome = run("generate", "a cat", *SMALL, "--model", str(pipeline_copy))
    assert_sentence(outcome, f"{pipeline_copy} could not be loaded")


def test_pickled_weights_are_never_opened(run: Run, pipeline_copy: Path) -> None:
    weights = pipeline_copy / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    outcome = run("generate", "a cat", *SMALL, "--model", str(pipeline_copy))
    assert_sentence(outcome, "is a pickle, which can run code", "safe_serialization=True")


def test_code_in_a_model_is_never_run(run: Run, pipeline_copy: Path, tmp_path: Path) -> None:
    index = json.loads((pipeline_copy / "model_index.json").read_text())
    index["_class_name"] = ["own_pipeline", "OwnPipeline"]
    (pipeline_copy / "model_index.json").write_text(json.dumps(index))
    (pipeline_copy / "own_pipeline.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    outcome = run("generate", "a cat", *SMALL, "--model", str(pipeline_copy))
    assert_sentence(outcome, "code that comes with a model is never run")
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def pipeline_of_another_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text-to-image pipeline whose denoiser tokenmerge does not know."""
    from diffusers import UNet2DModel

    from tokenmerge.runtime.tiny_random import build_tiny_random

    folder = tmp_path_factory.mktemp("other") / "saved"
    build_tiny_random().save_pretrained(folder)
    unknown = UNet2DModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    unknown.save_pretrained(folder / "unet")
    index = json.loads((folder / "model_index.json").read_text())
    index["unet"] = ["diffusers", "UNet2DModel"]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("command", ["generate", "compare", "explain"])
def test_a_model_of_unknown_class(run: Run, command: str, pipeline_of_another_kind: Path) -> None:
    prompt = () if command == "explain" else ("a cat",)
    outcome = run(command, *prompt, "--model", str(pipeline_of_another_kind))
    assert_sentence(outcome, "UNet2DModel is not a model that tokenmerge can merge in.")


def test_a_pipeline_without_a_prompt(run: Run, tmp_path: Path) -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=8,
        block_out_channels=(8,),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
    )
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(tmp_path / "ddpm")
    outcome = run("generate", "a cat", "--model", str(tmp_path / "ddpm"))
    assert_sentence(outcome, "is a DDPMPipeline, which takes no prompt")
