"""A model folder from anybody, looked at before anything of it is loaded: no code, no pickles, no absurd sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenmerge.errors import ModelLoadError

INDEX = "model_index.json"
CONFIG = "config.json"
# Weights as pickles, which can run code when they are opened.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LARGEST_JSON = 1_000_000  # bytes of a configuration; the longest in use have some ten thousand
# A configuration alone can ask for any amount of memory, so what decides it has a bound, far above all known models.
LARGEST_NUMBER = 10_000_000
MOST_LAYERS = 1000
# Sides of tables of positions, which have the square of it as entries.
LARGEST_TABLE_SIDE = 4096
TABLE_SIDES = ("sample_size", "pos_embed_max_size", "sample_height", "sample_width", "image_size")


def check_folder(folder: Path, allow_pickle: bool = False) -> str | None:
    """Raise where a pipeline's folder holds anything that must not be loaded; the variant its weights are saved as."""
    index = read_json(folder / INDEX)
    check_index(folder, index)
    for file in sorted(folder.glob("*/*config.json")):
        config = read_json(file)
        check_config(file, config)
        _refuse_code(file, config, index.get(file.parent.name))
    if not allow_pickle:
        for part in sorted(path for path in folder.iterdir() if path.is_dir()):
            _refuse_pickles(part)
    return _checked_weights(sorted(folder.glob("*/*.safetensors")))


def check_model_folder(folder: Path, allow_pickle: bool = False) -> str | None:
    """The same for the folder of one model, such as a UNet, that belongs to no pipeline."""
    file = folder / CONFIG
    config = read_json(file)
    check_config(file, config)
    _refuse_code(file, config, ["diffusers", "AutoModel"])
    if not allow_pickle:
        _refuse_pickles(folder)
    return _checked_weights(sorted(folder.glob("*.safetensors")))


def _checked_weights(files: list[Path]) -> str | None:
    """The variant that weights are saved as, once every file is found to be sound."""
    for file in files:
        _check_safetensors(file)
    plain = [file for file in files if ".fp16." not in file.name]
    return "fp16" if files and not plain else None


def read_json(file: Path) -> dict[str, Any]:
    """A table of a configuration file, which may not be larger than any such file is."""
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise ModelLoadError(
                f"{file} has {file.stat().st_size:,} bytes, more than the {LARGEST_JSON:,} that a configuration may "
                f"have: it is damaged or made to do harm, fetch it again."
            )
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} is not readable as JSON ({error}): fetch it again.") from None
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read ({error.strerror or error}): fetch it again.") from None
    if not isinstance(values, dict):
        raise ModelLoadError(f"{file} holds no table of values: fetch it again.")
    return values


def check_index(folder: Path, index: dict[str, Any]) -> None:
    """Raise if a pipeline names its own code, or a library that would be imported for it."""
    import diffusers

    name = index.get("_class_name")
    kind = getattr(diffusers, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, diffusers.DiffusionPipeline)):
        raise ModelLoadError(
            f"{folder / INDEX} names the pipeline {name!r}, which is none of diffusers {diffusers.__version__}: code "
            f"that comes with a model is never run, so give a model of a pipeline that diffusers has."
        )
    for part, origin in index.items():
        if part.startswith("_") or not isinstance(origin, list):
            continue
        if len(origin) != 2 or not part.isidentifier() or not (origin == [None, None] or _is_known(*origin)):
            raise ModelLoadError(
                f"{folder / INDEX} takes {part} from {origin!r}: parts come from diffusers and transformers alone, "
                f"because code that comes with a model is never run."
            )


def _is_known(library: object, class_name: object) -> bool:
    from diffusers import pipelines

    if not isinstance(library, str) or not isinstance(class_name, str) or not class_name.isidentifier():
        return False
    ours = library.startswith("tokenmerge.zoo.")
    # Some parts are classes of a pipeline's own module, such as the safety checker of Stable Diffusion.
    return library in ("diffusers", "transformers") or ours or (library.isidentifier() and hasattr(pipelines, library))


def _refuse_code(file: Path, config: dict[str, Any], origin: object) -> None:
    """A class that is named is loaded as it is; one that is looked up may be found in the model's own code."""
    looked_up = isinstance(origin, list) and str(origin[-1]).startswith("Auto") and "coder" not in str(origin[-1])
    if looked_up and "auto_map" in config:
        raise ModelLoadError(
            f"{file} asks for its own code (auto_map), and code that comes with a model is never run: give a model "
            f"whose parts are classes of diffusers and transformers."
        )


def check_config(file: Path, config: dict[str, Any]) -> None:
    """Raise where a part asks for more memory than a model of any kind has needed."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(str(key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]
            _refuse_above(file, f"entries in {name}", len(value), MOST_LAYERS)
        elif isinstance(value, int) and "theta" not in name:  # which is no size, and large in every model
            _refuse_above(file, name, value, _most(name))


def _most(name: str) -> int:
    if "layers" in name:
        return MOST_LAYERS
    return LARGEST_TABLE_SIDE if name in TABLE_SIDES else LARGEST_NUMBER


def _refuse_above(file: Path, name: str, value: int, most: int) -> None:
    if value > most:
        raise ModelLoadError(
            f"{file} asks for {value:,} {name}, more than the {most:,} that are loaded: it is damaged or made to do "
            f"harm, fetch it again."
        )


def _refuse_pickles(folder: Path) -> None:
    """Raise for the folder of one model whose weights are pickles alone."""
    pickles = [file for file in sorted(folder.iterdir()) if file.suffix in PICKLES and "model" in file.name]
    if pickles and not any(folder.glob("*.safetensors")):
        raise ModelLoadError(
            f"{pickles[0]} is a pickle, which can run code when it is opened, and there is no safetensors file next to "
            f"it: save the model again with safe_serialization=True, or add --allow-pickle if you trust whoever made "
            f"it."
        )


def _check_safetensors(file: Path) -> None:
    """Raise where a file is cut short or is no safetensors file: the header says how long it must be."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            return
    except (SafetensorError, OSError) as error:
        with file.open("rb") as stream:
            pointer = stream.read(40).startswith(b"version https://git-lfs")
        cure = "it is a Git LFS pointer, fetch the file with `git lfs pull`" if pointer else "fetch it again"
        raise ModelLoadError(f"{file} is damaged and cannot be read ({error}): {cure}.") from error
