"""The denoiser alone, a UNet or transformer: with its weights, or as shapes on the meta device.

A folder passes the same checks as one that `load_pipeline` loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokenmerge.errors import ModelLoadError, TokenMergeError, UnsupportedModelError
from tokenmerge.models.published import ARCHITECTURES, build, build_from_config
from tokenmerge.runtime.model_folder import CONFIG, INDEX, check_config, check_folder, check_model_folder, read_json
from tokenmerge.runtime.pipelines import TINY_RANDOM, default_model, load_error, local_folder

DENOISERS = ("unet", "transformer")


def load_denoiser(name: str, dtype: torch.dtype, allow_pickle: bool = False) -> nn.Module:
    """The UNet or transformer of a model, with its weights, on the CPU.

    name: "tiny-random", an embedded model, or the folder of a pipeline or of its denoiser.
    """
    if name == TINY_RANDOM:
        from tokenmerge.runtime.tiny_random import build_tiny_random

        tiny: nn.Module = build_tiny_random().unet.to(dtype)
        return tiny
    from diffusers import AutoModel

    from tokenmerge import zoo

    embedded = name in zoo.list_models()
    folder = zoo.folder_of(name) if embedded else Path(name).expanduser()
    if embedded:
        zoo.folders.verify(folder)
    if (folder / INDEX).is_file():
        check_folder(folder, allow_pickle)
        folder /= _denoiser_part(name, read_json(folder / INDEX))[0]
    elif not (folder / CONFIG).is_file():
        raise ModelLoadError(
            f"{name} has neither {INDEX} nor {CONFIG}, so no model can be loaded from it: give the folder of a "
            f"diffusers pipeline, or of its unet or transformer."
        )
    variant = check_model_folder(folder, allow_pickle)
    try:
        model: nn.Module = AutoModel.from_pretrained(
            str(folder),  # a Path fails in AutoModel
            torch_dtype=dtype,
            variant=variant,
            local_files_only=True,
            use_safetensors=None if allow_pickle else True,
            trust_remote_code=False,
        )
    except Exception as error:  # diffusers raises all kinds
        raise load_error(name, error) from error
    return model


def load_denoiser_on_meta(name: str | None = None) -> nn.Module:
    """The UNet or transformer that a name stands for, with shapes and without weights.

    name: an architecture such as "sdxl", or anything `load_pipeline` takes; of a folder only its configuration is read.
    """
    name = default_model() if name is None else name
    if name in ARCHITECTURES:
        return build(name)
    if name == TINY_RANDOM:
        from tokenmerge.runtime.tiny_random import build_tiny_random

        tiny: nn.Module = build_tiny_random().unet.to("meta")
        return tiny
    from tokenmerge import zoo

    if name in zoo.list_models():
        name = str(zoo.folder_of(name))
    class_name, config = _denoiser_config(name)
    try:
        return build_from_config(class_name, config)
    except TokenMergeError:
        raise
    except Exception as error:  # diffusers checks little of a configuration, and a broken one raises anything
        raise load_error(name, error) from error


def _denoiser_config(name: str) -> tuple[str, dict[str, Any]]:
    """Class name and configuration of the UNet or transformer of a local folder or hub id."""
    folder = local_folder(name, ARCHITECTURES)
    part, class_name = _denoiser_part(name, read_json(_file_of(name, folder, INDEX)))
    file = _file_of(name, folder, f"{part}/{CONFIG}")
    config = read_json(file)
    check_config(file, config)
    return class_name, config


def _denoiser_part(name: str, index: dict[str, Any]) -> tuple[str, str]:
    """Which part of a pipeline the denoiser is, and its class."""
    part = next((part for part in DENOISERS if part in index), None)
    if part is None:
        raise UnsupportedModelError(
            f"{name} is a {index.get('_class_name')} without a unet or transformer: name a text-to-image model."
        )
    origin = index[part]
    if not isinstance(origin, list) or len(origin) != 2:
        raise ModelLoadError(f"{name} does not say what class its {part} is of: fetch it again.")
    return part, str(origin[1])


def _file_of(name: str, folder: Path | None, file: str) -> Path:
    if folder is not None:
        return folder / file
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # the hub raises all kinds
        raise load_error(name, error) from error
