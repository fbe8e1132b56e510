"""Copies of a model in memory and on disk."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from row import Row
from tiny_pipelines import flux_pipeline, generate, quiet, stable_diffusion
from torch import nn
from with_offload import denoiser

from tokenmerge.engine.session import session_of


def copied(copies: Callable[[nn.Module], nn.Module], pipe: Any) -> Any:
    """A pipeline whose denoiser is a copy of the given one's."""
    name = "unet" if hasattr(pipe, "unet") else "transformer"
    more = {"requires_safety_checker": False} if "safety_checker" in pipe.components else {}
    return quiet(type(pipe)(**{**pipe.components, name: copies(denoiser(pipe))}, **more))


def pickled(model: nn.Module) -> nn.Module:
    twin: nn.Module = pickle.loads(pickle.dumps(model))
    return twin


def saved(pipe: Any) -> Any:
    """Save it, and see that the files hold nothing of merging. What is merged stays in use, else what was read is."""
    with TemporaryDirectory() as folder:
        pipe.save_pretrained(folder)
        for file in Path(folder).rglob("*"):
            assert file.is_dir() or b"tokenmerge" not in file.read_bytes(), f"{file.name} speaks of merging"
        loaded = quiet(type(pipe).from_pretrained(folder))
    model = denoiser(loaded)
    assert session_of(model) is None
    for (name, one), (other_name, other) in zip(
        denoiser(pipe).state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(one, other)
    if session_of(denoiser(pipe)) is None:
        return loaded
    assert torch.equal(generate(loaded), generate(type(loaded).from_pipe(loaded))), "it was read merged"
    return pipe


MODELS = (("SD 1.5", stable_diffusion), ("Flux", flux_pipeline))
ROWS = [
    *(
        Row("copies", name, *on, partial(copied, copies), changes=False, copies=True)
        for name, copies in (("`deepcopy`", copy.deepcopy), ("`pickle`", pickled))
        for on in MODELS
    ),
    Row(
        "copies",
        "`save_pretrained`, `from_pretrained`",
        *MODELS[0],
        saved,
        changes=False,
        remark="no trace of merging in the files",
    ),
]
