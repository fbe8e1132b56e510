"""Real architectures at full size, by name and without a download: on the meta device, or with random weights.

The values are those of the models' published configurations, so shapes, tokens and multiply-adds are the real ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tokenmerge.errors import ConfigError, UnsupportedModelError, hint
from tokenmerge.models.architecture import Architecture
from tokenmerge.models.published_images import IMAGE_MODELS
from tokenmerge.models.published_unets import UNETS
from tokenmerge.models.published_videos import VIDEO_MODELS

ARCHITECTURES: dict[str, Architecture] = {**UNETS, **IMAGE_MODELS, **VIDEO_MODELS}

OTHERWISE = "`tokenmerge explain --help` lists those that it can."


def architecture(name: str) -> Architecture:
    """The architecture of that name; an unknown name is an error that suggests one."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise ConfigError(
        f"{name!r} is not an architecture that tokenmerge can build: {hint(name, ARCHITECTURES, OTHERWISE)}"
    )


def build(
    name: str,
    device: str | torch.device = "meta",
    dtype: torch.dtype = torch.float32,
    blocks: Sequence[int] | None = None,
) -> nn.Module:
    """A bare diffusers model of full size, in eval mode and without gradients.

    On "meta" it has shapes and no weights, and takes next to no memory. On a real device its weights are random, the
    same ones each time, and it takes the memory the real model takes.

    blocks: fewer blocks than the real model has, to fit small memory: (double, single) for Flux, (blocks,) for PixArt
        and SD3.

    >>> sum(weight.numel() for weight in build("sd15").parameters())
    859520964
    """
    known = architecture(name)
    config = dict(known.config)
    if blocks is not None:
        config.update(_depth(name, known, blocks))
    return build_from_config(known.class_name, config, device, dtype)


def build_from_config(
    class_name: str,
    config: dict[str, Any],
    device: str | torch.device = "meta",
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A diffusers model of any class from its configuration, without weights on "meta", else with random ones."""
    import diffusers

    kind: Any = getattr(diffusers, class_name, None)
    if not hasattr(kind, "from_config") or not issubclass(kind, diffusers.ModelMixin):
        raise UnsupportedModelError(
            f"diffusers {diffusers.__version__} has no model class {class_name}: update diffusers, or name another "
            f"model."
        )
    device = torch.device(device)
    default = torch.get_default_dtype()
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        device,
        warnings.catch_warnings(),
    ):
        # Some of diffusers' own classes use what diffusers has deprecated: nobody who reads it here can mend it.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"diffusers\.")
        torch.manual_seed(0)
        # A model made in half precision never takes the memory of a full one.
        torch.set_default_dtype(dtype)
        try:
            model: nn.Module = kind.from_config(config)
        finally:
            torch.set_default_dtype(default)
    # Tables that diffusers computes with numpy are made on the CPU, whatever the device.
    # Past diffusers' own `to`, which warns about weights it would keep in float32 even where there are none.
    return nn.Module.to(model, device=device, dtype=dtype).eval().requires_grad_(False)


def _depth(name: str, known: Architecture, blocks: Sequence[int]) -> dict[str, Any]:
    """The config entries that cut a model down to this many blocks."""
    whole = [known.config[entry] for entry in known.depth]
    if not whole:
        raise ConfigError(
            f"blocks is {tuple(blocks)!r}, and {name} is a UNet whose blocks cannot be cut: leave it out."
        )
    if len(blocks) != len(whole) or not all(1 <= count <= most for count, most in zip(blocks, whole, strict=True)):
        counts = ", ".join(f"1 to {most}" for most in whole)
        raise ConfigError(f"blocks is {tuple(blocks)!r}: for {name} it takes {len(whole)} whole numbers ({counts}).")
    entries: dict[str, Any] = dict(zip(known.depth, blocks, strict=True))
    if "dual_attention_layers" in known.config:
        entries["dual_attention_layers"] = tuple(
            layer for layer in known.config["dual_attention_layers"] if layer < blocks[0]
        )
    return entries
