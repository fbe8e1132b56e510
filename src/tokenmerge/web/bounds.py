"""What the page's controls may hold. A value outside is a sentence that says which values are inside."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tokenmerge.accelerations.base import Acceleration
from tokenmerge.accelerations.named import FEWER_STEPS, PRESET, named_acceleration
from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import UsageError
from tokenmerge.methods.named import METHODS, named_config, takes_ratio
from tokenmerge.presets import NAMES, preset
from tokenmerge.runtime.generation import LARGEST_SEED, LATENT, ImageRequest, check_size
from tokenmerge.zoo.folders import NAMES as EMBEDDED

LONGEST_PROMPT = 1000
MOST_STEPS = 100
SMALLEST_SIDE, LARGEST_SIDE = 64, 2048
LARGEST_GUIDANCE = 30.0
LOWEST_RATIO, HIGHEST_RATIO = 0.05, 0.95
LONGEST_INTERVAL = 100
MOST_SWEPT = 24

OWN = "my own"  # an entry after the presets: the settings below it count
PRESETS_SWEPT = {f"preset {name}": name for name in NAMES}
# Ours, then what else makes a pipeline faster: fewer steps, and a cache for UNets and one for transformers.
UNET_CACHE, TRANSFORMER_CACHE = "deepcache", "first-block-cache"
SWEPT = (*PRESETS_SWEPT, *METHODS, FEWER_STEPS, UNET_CACHE, TRANSFORMER_CACHE)

# The controls of the page that are options of a method. Not every method has each.
METHOD_CONTROLS = ("tile", "region", "scope", "parts", "select_every")


def first_sweep(model: str) -> list[str]:
    """What a sweep begins with: ours and its rivals, with the cache that fits if the model is an embedded one."""
    chosen = ["preset balanced", "tomesd", FEWER_STEPS]
    if model in EMBEDDED and "flux" in model:
        chosen.append(TRANSFORMER_CACHE)
    elif model in EMBEDDED and find_spec("DeepCache") is not None:
        chosen.append(UNET_CACHE)
    return chosen


@dataclass(frozen=True)
class Request:
    """One comparison as the page asks for it, checked."""

    model: str
    image: ImageRequest
    method: str
    choice: MergeConfig | str  # settings, or the name of a preset, whose config is known once the model is
    preset: str | None = None  # the preset that the settings come from

    def for_model(self, pipe: Any) -> Request:
        """The same with the config of the preset, if one was asked for."""
        if not isinstance(self.choice, str):
            return self
        config = preset(self.choice, pipe)  # type: ignore[arg-type]
        return dataclasses.replace(self, choice=config, preset=self.choice)

    @property
    def config(self) -> MergeConfig:
        assert not isinstance(self.choice, str), "a preset has no config before its model is known"
        return self.choice

    @property
    def label(self) -> str:
        return self.preset or f"{self.method}, ratio {self.ratio:g}"

    @property
    def ratio(self) -> float:
        """The fraction merged away: of tokens, or of keys for methods that leave queries alone."""
        return self.config.number("ratio")


@dataclass(frozen=True)
class Inputs:
    """What the controls hold, as they hold it."""

    preset: str
    prompt: str
    seed: float | None
    steps: float | None
    size: str
    guidance: str
    model: str
    method: str
    ratio: float | None
    tile: float | None
    region: str | None
    scope: str | None
    parts: Sequence[str]
    select_every: float | None


FIELDS = tuple(field.name for field in dataclasses.fields(Inputs))


def read(inputs: Inputs) -> Request:
    """The request that the controls describe; raises with the first that is out of bounds."""
    model, image = _model(inputs.model), read_image_request(inputs)
    if inputs.preset in NAMES:
        return Request(model, image, inputs.preset, inputs.preset)
    if inputs.preset != OWN:
        raise UsageError(f"There is no preset {inputs.preset!r}: choose one of the list.")
    check_method(inputs.method)
    return Request(model, image, inputs.method, _config(inputs))


def check_method(method: object) -> None:
    """Refuse what is not a name of a method."""
    if not isinstance(method, str) or method not in METHODS:
        raise UsageError(f"There is no method {method!r}: choose one of the list.")


def read_image_request(inputs: Inputs) -> ImageRequest:
    """What is generated, whatever merges it."""
    return ImageRequest(
        prompt=_prompt(inputs.prompt),
        seed=_whole("Seed", inputs.seed, 0, LARGEST_SEED),
        steps=_whole("Steps", inputs.steps, 1, MOST_STEPS),
        size=read_size(inputs.size),
        # Left empty it is the model's own.
        guidance=_number("Guidance", inputs.guidance, 0, LARGEST_GUIDANCE) if (inputs.guidance or "").strip() else None,
    )


def read_size(text: str) -> tuple[int, int]:
    """(width, height) from "768 x 512" or "512".

    >>> read_size("768 x 512"), read_size("256")
    ((768, 512), (256, 256))
    """
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:[x×]\s*(\d{1,5})\s*)?(?:px)?\s*", str(text or "").lower())
    if found is None:
        raise UsageError(f"Size is {text!r}: write width x height in pixels, such as 768 x 512, or one number.")
    size = int(found[1]), int(found[2] or found[1])
    if not all(SMALLEST_SIDE <= side <= LARGEST_SIDE for side in size):
        raise UsageError(
            f"Size is {size[0]} x {size[1]}: each side takes {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, 512 say."
        )
    check_size(size, LATENT)
    return size


def swept_with_ratio(method: str) -> bool:
    """Whether a sweep takes a method at several ratios. Fewer steps have one: the fraction of steps left out."""
    return method == FEWER_STEPS or (method in METHODS and takes_ratio(method))


def read_sweep(methods: Sequence[str], ratios: Sequence[float | str]) -> list[tuple[str, float | None]]:
    """Every method at every ratio. One without a ratio comes once, with None."""
    if not methods or not ratios:
        raise UsageError("A sweep needs at least one method and one ratio: tick some.")
    for method in methods:
        if method not in SWEPT:
            raise UsageError(f"There is no method {method!r}: choose one of the list.")
    values = [_number("Ratio", ratio, LOWEST_RATIO, HIGHEST_RATIO) for ratio in ratios]
    pairs: list[tuple[str, float | None]] = []
    for method in methods:
        pairs += [(method, ratio) for ratio in sorted(values)] if swept_with_ratio(method) else [(method, None)]
    if len(pairs) > MOST_SWEPT:
        raise UsageError(
            f"That would generate {len(pairs)} merged images, and a sweep takes at most {MOST_SWEPT}: tick fewer."
        )
    return pairs


def swept_acceleration(method: str, ratio: float | None) -> Acceleration:
    """What a sweep applies for a method of `SWEPT` at a ratio."""
    if method in PRESETS_SWEPT:
        return named_acceleration(PRESET, {"preset": PRESETS_SWEPT[method]})
    if method == FEWER_STEPS:
        return named_acceleration(method, {"fraction": 1 - (ratio or 0)})
    return named_acceleration(method, None, ratio)


def controls_of(method: str) -> dict[str, Any]:
    """The values that a method gives to the controls; None if it has no such option."""
    preset = METHODS[method].make()
    values = {name: getattr(preset, name, None) for name in METHOD_CONTROLS}
    tile = values["tile"]
    return values | {
        "tile": None if tile is None else tile[-1],
        "scope": preset.merged_per,
        "select_every": preset.refresh_every[0] if preset.has_option("select_every") else None,
    }


def settings_beyond(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from what the method has anyway, of the options that it takes at all."""
    own, preset = controls_of(method), METHODS[method].make()
    return {
        name: value
        for name, value in values.items()
        if preset.has_option(name) and value is not None and own[name] != value
    }


def _config(inputs: Inputs) -> MergeConfig:
    ratio = _number("Ratio", inputs.ratio, LOWEST_RATIO, HIGHEST_RATIO) if takes_ratio(inputs.method) else None
    values: dict[str, Any] = {"region": inputs.region, "scope": inputs.scope}
    # In the order the methods have them, whatever was ticked first.
    values["parts"] = tuple(part for part in MergeConfig.allowed_parts if part in inputs.parts)
    for name, label in (("tile", "Tile"), ("select_every", "New destinations every")):
        if METHODS[inputs.method].make().has_option(name):
            values[name] = _whole(label, getattr(inputs, name), 1, LONGEST_INTERVAL)
    return named_config(inputs.method, ratio, settings_beyond(inputs.method, values))


def _prompt(text: str) -> str:
    text = (text or "").strip()
    if not text:
        raise UsageError("The prompt is empty: say what to generate, red apple for instance.")
    if len(text) > LONGEST_PROMPT:
        raise UsageError(f"The prompt has {len(text)} characters: use at most {LONGEST_PROMPT}.")
    return text


def _model(name: str) -> str:
    name = (name or "").strip()
    if not name:
        raise UsageError("No model is named: choose one of the list, or give a folder or a hub id.")
    return name


def _number(label: str, value: Any, least: float, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise UsageError(f"{label} is {_shown(value)}: it takes a number from {least:g} to {most:g}.")
    return number


def _whole(label: str, value: Any, least: int, most: int) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most or number != int(number):
        raise UsageError(f"{label} is {_shown(value)}: it takes a whole number from {least} to {most}.")
    return int(number)


def _shown(value: Any) -> str:
    return "empty" if value is None or value == "" else str(value)
