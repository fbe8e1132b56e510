"""Loads a pipeline by name: the tiny random one, an embedded model, a local folder, or an id on a model hub.

Weights come from safetensors files only, unless pickles are allowed, and code never comes from a model: nothing that is
loaded can run anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tokenmerge.errors import ModelLoadError, UnsupportedModelError, nearest
from tokenmerge.models.published import ARCHITECTURES
from tokenmerge.runtime.devices import pick_device, pick_dtype
from tokenmerge.runtime.generation import ImageRequest, generate, takes
from tokenmerge.runtime.model_folder import INDEX, check_folder

if TYPE_CHECKING:
    from PIL.Image import Image

TINY_RANDOM = "tiny-random"
PREFERRED = "emoji-sd"


@dataclass(frozen=True)
class LoadedPipeline:
    """A text-to-image pipeline, and what to say of it."""

    pipe: Any
    name: str
    device: torch.device
    dtype: torch.dtype
    # Weights are random, so an image says nothing about quality.
    random: bool = False

    @property
    def notice(self) -> str | None:
        """A line every command prints where the model is not a real one."""
        if not self.random:
            return None
        return (
            f"{self.name} is a tiny model with random weights: its images mean nothing, name a real one with --model."
        )

    def takes(self, argument: str) -> bool:
        """Whether the pipeline's call takes this argument."""
        return takes(self.pipe, argument)

    def generate(
        self, request: ImageRequest, progress: str | None = None, on_step: Callable[[int], None] | None = None
    ) -> tuple[Image, float]:
        """The image of a request and its seconds, by `runtime.generation.generate`."""
        return generate(self.pipe, **request.arguments(self.pipe), progress=progress, on_step=on_step)

    @property
    def size_step(self) -> int:
        """Width and height must be multiples of this many pixels: one latent, or one patch of latents."""
        step = int(getattr(self.pipe, "vae_scale_factor", 8))
        transformer = getattr(self.pipe, "transformer", None)
        if transformer is None:
            return step
        # Flux packs 2 x 2 latents into a token outside its transformer, whose own patch is 1.
        return step * max(2, int(getattr(transformer.config, "patch_size", 1) or 1))


def default_model() -> str:
    """The model that commands use when none is named: the embedded one where its weights are installed."""
    from tokenmerge.zoo import list_models

    return PREFERRED if PREFERRED in list_models() else TINY_RANDOM


def load_pipeline(
    name: str | None = None, device: str | None = None, dtype: str | None = None, allow_pickle: bool = False
) -> LoadedPipeline:
    """Load a text-to-image pipeline and move it to a device.

    name: "tiny-random", an embedded model, a local folder, or a hub id such as "org/model". None takes the default.
    device: "cpu", "cuda", "cuda:1", "mps"; None takes the best there is.
    dtype: "float32", "float16" or "bfloat16"; None takes float32 on a CPU and half precision elsewhere.
    allow_pickle: also take weights that are pickles, which can run code as they are opened, where there are no others.
    """
    name = default_model() if name is None else name
    where = pick_device(device)
    precision = pick_dtype(dtype, where)
    pipe = _load(name, precision, allow_pickle)
    loaded = LoadedPipeline(pipe.to(where, precision), name, where, precision, random=name == TINY_RANDOM)
    if not loaded.takes("prompt"):
        raise UnsupportedModelError(
            f"{name} is a {type(pipe).__name__}, which takes no prompt: name a text-to-image model with --model."
        )
    return loaded


def check_name(name: str) -> None:
    """Raise, before anything is loaded, if a name stands for nothing that can be."""
    from tokenmerge import zoo

    if name in ARCHITECTURES:
        raise ModelLoadError(
            f"{name} names an architecture, which has no weights to generate with: give the folder or the hub id of a "
            f"model (`tokenmerge explain` takes {name} as it is)."
        )
    if name not in (TINY_RANDOM, *zoo.folders.NAMES):
        local_folder(name)


def _load(name: str, dtype: torch.dtype, allow_pickle: bool) -> Any:
    check_name(name)
    if name == TINY_RANDOM:
        from tokenmerge.runtime.tiny_random import build_tiny_random

        return build_tiny_random()
    from tokenmerge import zoo

    if name in zoo.folders.NAMES:
        return zoo.load(name)
    folder = local_folder(name) or _fetched(name, allow_pickle)
    return _from_pretrained(name, folder, dtype, check_folder(folder, allow_pickle), allow_pickle)


def local_folder(name: str, architectures: Iterable[str] = ()) -> Path | None:
    """The folder a name stands for, None for a hub id, an error if it can be neither.

    architectures: names that would also have been understood, to suggest the nearest.
    """
    if not name.strip():
        raise ModelLoadError("no model is named: give a folder, a hub id such as org/model, or an embedded model.")
    path = Path(name).expanduser()
    if (hub_id := hub_id_in(name)) is not None:
        raise ModelLoadError(f"{name} is an address: give the model's id on the hub, {hub_id}, or a local folder.")
    if path.is_dir():
        if not (path / INDEX).is_file():
            raise ModelLoadError(
                f"{name} has no model_index.json, so it is not a diffusers pipeline: give the folder that "
                f"save_pretrained wrote, the one with model_index.json in it."
            )
        return path
    if path.is_file():
        raise ModelLoadError(f"{name} is a file: give the folder of a diffusers pipeline, or convert the file to one.")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        from tokenmerge import zoo

        embedded = [*zoo.list_models(), TINY_RANDOM]
        raise ModelLoadError(
            f"there is no model folder {name}: {_near(name, [*embedded, *architectures])}check the path, or give a hub "
            f"id such as org/model, or one of {', '.join(embedded)}"
            f"{', or an architecture that `tokenmerge explain --help` names' if architectures else ''}."
        )
    return None


def hub_id_in(name: str) -> str | None:
    """The id in the address of a model's page on a hub; None for what is no such address.

    >>> hub_id_in("https://huggingface.co/org/model/tree/main")
    'org/model'
    """
    found = re.match(r"https?://[^/]+/([^/?#]+/[^/?#]+)", name)
    return found[1] if found else None


def _near(name: str, known: list[str]) -> str:
    """A question that names what was probably meant, also by a model's title; empty if nothing is called like it."""
    titles = {ARCHITECTURES[word].title.lower(): word for word in known if word in ARCHITECTURES}
    words = re.sub(r"[-_ ]+", " ", name).lower()
    begins = next((title for title in titles if title.startswith(words)), None)
    near = nearest(name, known) or titles.get(begins or nearest(words, titles) or "")
    return f"did you mean {near}? Otherwise " if near else ""


def _fetched(name: str, allow_pickle: bool) -> Path:
    """The folder that holds a model of the hub, fetched if need be, so that it is looked at as any other is."""
    from diffusers import DiffusionPipeline

    try:
        return Path(DiffusionPipeline.download(name, use_safetensors=None if allow_pickle else True))
    except Exception as error:  # diffusers and the hub raise all kinds
        raise load_error(name, error) from error


def _from_pretrained(name: str, folder: Path, dtype: torch.dtype, variant: str | None, allow_pickle: bool) -> Any:
    from diffusers import DiffusionPipeline

    try:
        return DiffusionPipeline.from_pretrained(
            str(folder),
            torch_dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            variant=variant,
            local_files_only=True,
        )
    except Exception as error:  # diffusers and transformers raise all kinds
        raise load_error(name, error) from error


def load_error(name: str, error: Exception) -> ModelLoadError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    first = first.rstrip(".")
    if Path(name).expanduser().is_dir():
        return ModelLoadError(f"{name} could not be loaded ({first}): check that all its files are there and whole.")
    return ModelLoadError(
        f"{name} could not be fetched from the hub ({first}): check the id and the network, or give a local folder."
    )
