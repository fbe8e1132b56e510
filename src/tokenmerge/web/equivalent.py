"""The same comparison without the page: as a Python program, and as a command line."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import tokenmerge
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.errors import ConfigError
from tokenmerge.methods.named import named_config, takes_ratio
from tokenmerge.web.bounds import Request


def as_python(request: Request, guidance: dict[str, Any]) -> str:
    """A program that generates both images. guidance: as the model's pipeline takes it."""
    wanted = request.image
    arguments: dict[str, Any] = {"prompt": wanted.prompt, "num_inference_steps": wanted.steps}
    if wanted.size is not None:
        arguments["width"], arguments["height"] = wanted.size
    arguments |= guidance
    given = "".join(f"    {name}={value!r},\n" for name, value in arguments.items())
    noise = f'generator=torch.Generator("cpu").manual_seed({wanted.seed})'
    return (
        "import torch\n\n"
        "import tokenmerge as tm\n"
        "from tokenmerge.runtime.pipelines import load_pipeline\n\n"
        f"pipe = load_pipeline({request.model!r}).pipe  # or a diffusers pipeline of your own\n"
        f"image = dict(\n{given})\n"
        f"unmerged = pipe(**image, {noise}).images[0]\n"
        f"with tm.merged(pipe, {_chosen(request)}) as handle:\n"
        f"    merged = pipe(**image, {noise}).images[0]\n"
        "    print(handle.explain())\n"
        'unmerged.save("unmerged.png")\n'
        'merged.save("merged.png")\n'
    )


def _chosen(request: Request) -> str:
    """The preset by name, or the settings."""
    return repr(request.preset) if request.preset else constructor(request.config)


def constructor(config: MergeConfig) -> str:
    """The call that makes a config, with no more than is not the default.

    >>> from tokenmerge import ToMA
    >>> constructor(ToMA(ratio=0.25, region="stripe"))
    "tm.ToMA(ratio=0.25, region='stripe')"
    """
    name = type(config).__name__
    if name not in tokenmerge.__all__:
        return f"tm.MergeConfig.from_dict({config.to_dict()!r})"
    given = _needed(config)
    return f"tm.{name}({', '.join(f'{option}={_as_code(value)}' for option, value in given.items())})"


def _needed(config: MergeConfig) -> dict[str, Any]:
    """The options that make the config: not those that are defaults, or follow from others. A ratio is always named."""
    plain = type(config)()
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    needed = {name: value for name, value in values.items() if name == "ratio" or value != getattr(plain, name)}
    for name in [name for name in needed if name != "ratio"]:
        rest = {other: value for other, value in needed.items() if other != name}
        if _makes(config, rest):
            needed = rest
    return needed


def _makes(config: MergeConfig, options: dict[str, Any]) -> bool:
    try:
        return type(config)(**options) == config
    except ConfigError:
        return False


def _as_code(value: Any) -> str:
    return f"tm.{value!r}" if isinstance(value, FullSteps) else repr(value)


def as_command(request: Request) -> str:
    """The `tokenmerge compare` that generates both images."""
    wanted = request.image
    words = ["tokenmerge", "compare", wanted.prompt, "--seed", str(wanted.seed), "--steps", str(wanted.steps)]
    if wanted.prompt.startswith("-"):
        words[2:3] = []  # a prompt that looks like an option goes to the end, behind --
    if wanted.size is not None:
        words += ["--size", "{}x{}".format(*wanted.size)]
    if wanted.guidance is not None:
        words += ["--guidance", f"{wanted.guidance:g}"]
    words += ["--model", request.model, "--method", request.method]
    if request.preset is None and takes_ratio(request.method):
        words += ["--ratio", f"{request.ratio:g}"]
    for name, value in _settings(request).items():
        words += ["--set", f"{name}={_written(value)}"]
    if wanted.prompt.startswith("-"):
        words += ["--", wanted.prompt]
    return shlex.join(words)


def _settings(request: Request) -> dict[str, Any]:
    """The options in which the config differs from its named method."""
    if request.preset is not None:
        return {}
    named = named_config(request.method, request.ratio if takes_ratio(request.method) else None)
    return {
        field.name: getattr(request.config, field.name)
        for field in dataclasses.fields(named)
        if getattr(request.config, field.name) != getattr(named, field.name)
    }


def _written(value: Any) -> str:
    if isinstance(value, FullSteps):
        return json.dumps(dataclasses.asdict(value))
    # A list of one is written as its item: configs take a single word for a list of it.
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
