"""Where the embedded models lie, what they know, and whether their files are whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tokenmerge.errors import ModelLoadError, hint

NAMES = ("emoji-sd", "emoji-sd-4", "photo-flux")
# Models of few steps: name -> the model whose LoRA they are, and its steps.
FEW_STEPS = {"emoji-sd-4": ("emoji-sd", 4)}
WEIGHTS = Path(__file__).with_name("weights")
GUIDANCE = 3.0  # their best; their pipelines' default is for far larger models
CHECKSUMS = "checksums.json"
CAPTIONS = "captions.json"


def list_models() -> list[str]:
    """Names that `load` accepts and whose weights are in this installation."""
    return [name for name in NAMES if all(file.is_file() for file in _needed(name))]


def lora_of(name: str) -> Path | None:
    """The LoRA that makes the weights in the model's folder a model of few steps; None where there is none to add."""
    if name not in FEW_STEPS:
        return None
    base, steps = FEW_STEPS[name]
    return WEIGHTS / base / f"{steps}-steps" / "pytorch_lora_weights.safetensors"


def few_steps_name(name: str, steps: int) -> str:
    """The name of the model of this many steps that was made from the model `name`."""
    for few, made_of in FEW_STEPS.items():
        if made_of == (name, steps):
            return few
    there = ", ".join(f"{base!r} with steps={count}" for base, count in FEW_STEPS.values())
    raise ModelLoadError(
        f"{name!r} was not trained for {steps} steps; there is {there}. Leave steps out to load {name!r} as it is, "
        "and pass num_inference_steps to the pipeline."
    )


def _needed(name: str) -> list[Path]:
    """Files that are there if the weights of a model are."""
    lora = lora_of(name)
    folder = WEIGHTS / FEW_STEPS.get(name, (name,))[0]
    return [folder / CHECKSUMS, *([] if lora is None else [lora])]


def folder_of(name: str) -> Path:
    """The folder of an embedded model, which `DiffusionPipeline.from_pretrained` loads too."""
    if name not in NAMES:
        raise ModelLoadError(f"there is no embedded model {name!r}: {hint(name, NAMES)}")
    if name not in list_models():
        raise ModelLoadError(
            f"The weights of {name!r} are not in this installation; install the tokenmerge wheel, which holds them, "
            "or make them with the commands in training/README.md."
        )
    return WEIGHTS / FEW_STEPS.get(name, (name,))[0]


def known_captions(name: str) -> list[str]:
    """Captions the model was trained on: the prompts it answers best."""
    return list(json.loads((folder_of(name) / CAPTIONS).read_text())["captions"])


def known_words(folder: Path) -> frozenset[str]:
    """Words the model has seen in training, in lower case."""
    return frozenset(json.loads((folder / CAPTIONS).read_text())["words"])


def checksum(file: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_checksums(folder: Path) -> None:
    """Record every file of a finished model folder in its checksums.json."""
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != CHECKSUMS)
    sums = {file.relative_to(folder).as_posix(): checksum(file) for file in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n")


def verify(folder: Path) -> None:
    """Raise `ModelLoadError` if a recorded file is missing or not what was recorded."""
    try:
        sums: dict[str, str] = json.loads((folder / CHECKSUMS).read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{folder / CHECKSUMS} is missing or unreadable, so the model cannot be checked; install tokenmerge again."
        ) from error
    for relative, expected in sums.items():
        file = folder / relative
        if not file.is_file():
            raise ModelLoadError(f"{file} is missing; install tokenmerge again.")
        if checksum(file) != expected:
            raise ModelLoadError(f"{file} is damaged: its checksum is not the recorded one; install tokenmerge again.")
