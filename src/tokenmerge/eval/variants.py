"""The variants of an experiment: the unmodified baseline, fewer steps, then each method at each of its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmerge.accelerations.base import Acceleration
from tokenmerge.accelerations.fewer_steps import FewerSteps
from tokenmerge.accelerations.merging import Merging, Preset
from tokenmerge.accelerations.named import named_acceleration
from tokenmerge.accelerations.together import Together
from tokenmerge.errors import ConfigError
from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.experiment import Experiment, VariantChoice
from tokenmerge.methods.named import METHODS, takes_ratio

FEWER_STEPS_NAME = "fewer steps"
PRESETS = "tokenmerge"


@dataclass(frozen=True)
class Variant:
    """One column of images."""

    key: str  # its folder's name
    name: str  # what tables call it; variants of one name are settings of one method
    ratio: float | None = None
    setting: str = ""  # what sets it apart from others of its name, besides the ratio
    acceleration: Acceleration | None = None  # None: the pipeline as it is

    @property
    def label(self) -> str:
        parts = [self.name, *([] if self.ratio is None else [f"r = {self.ratio:g}"])]
        return ", ".join([*parts, *([self.setting] if self.setting else [])])

    def config_dict(self) -> dict[str, Any] | None:
        return None if self.acceleration is None else self.acceleration.settings()


BASELINE = Variant("baseline", "baseline")


def variants_of(experiment: Experiment) -> list[Variant]:
    """The baseline first. Accelerations are built, so a wrong option or a missing package shows at once."""
    variants = [BASELINE, *fewer_steps_of(experiment)]
    for choice in experiment.variants:
        for ratio in _ratios(choice, experiment):
            variants += [_variant(choice, ratio, setting) for setting in choice.settings or ({},)]
    refuse_twins(variants)
    return variants


def refuse_twins(variants: Sequence[Variant]) -> None:
    """Raise if two variants would keep their images in one folder."""
    keys = [variant.key.lower() for variant in variants]  # some disks take ToMA and toma for one name
    for variant in variants:
        if keys.count(variant.key.lower()) > 1:
            raise ExperimentError(
                f"variant {variant.name!r} would share the folder images/{variant.key} with another: give the variants "
                f"names that differ in letters or digits, and each ratio and setting once."
            )


def fewer_steps_of(experiment: Experiment) -> list[Variant]:
    """One for each number of steps below the experiment's: with few steps, several shares come to the same number."""
    steps = experiment.image.steps
    found: dict[int, Variant] = {}
    for share in experiment.fewer_steps:
        try:
            fewer = FewerSteps(share)
        except ConfigError as error:
            raise ExperimentError(f"fewer_steps: {error}") from None
        run = fewer.steps_of(steps)
        if run < steps:
            key, setting = f"fewer-steps_{run}", f"{run} of {steps}"
            found.setdefault(run, Variant(key, FEWER_STEPS_NAME, None, setting, fewer))
    return list(found.values())


def _ratios(choice: VariantChoice, experiment: Experiment) -> Sequence[float | None]:
    if choice.ratios is None:
        return experiment.ratios if choice.method in METHODS and takes_ratio(choice.method) else [None]
    return choice.ratios or [None]


def _variant(choice: VariantChoice, ratio: float | None, setting: Mapping[str, Any]) -> Variant:
    try:
        acceleration = named_acceleration(choice.method, {**choice.options, **setting}, ratio)
        if choice.also is not None:
            acceleration = Together(acceleration, named_acceleration(choice.also.method, choice.also.options))
    except (ConfigError, TypeError) as error:
        raise ExperimentError(f"variant {choice.name!r}: {error}") from None
    text = ", ".join(f"{name} = {value}" for name, value in setting.items())
    return Variant(_key(choice.name, ratio, text), choice.name, _shown(acceleration), text, acceleration)


def variant_of(acceleration: Acceleration) -> Variant:
    """An acceleration that was made in Python, named after its class; its setting is what differs from the default."""
    if isinstance(acceleration, Preset):
        # One name for all presets, so that tables take them for one curve.
        return Variant(_key(PRESETS, text=acceleration.preset), PRESETS, None, acceleration.preset, acceleration)
    if not isinstance(acceleration, Merging):
        name, options = type(acceleration).__name__, acceleration.settings()
    else:
        config = acceleration.config
        name, plain = type(config).__name__, type(config)().to_dict()
        options = {option: value for option, value in config.to_dict().items() if value != plain[option]}
    ratio = _shown(acceleration) or None  # 0: all tokens stay, and no ratio says how much is saved
    text = ", ".join(f"{option} = {value}" for option, value in options.items() if option != "ratio" or ratio is None)
    return Variant(_key(name, ratio, text), name, ratio, text, acceleration)


def _key(name: str, ratio: float | None = None, text: str = "") -> str:
    key = slug(name) if ratio is None else f"{slug(name)}_r{ratio:g}"
    return f"{key}_{slug(text)}" if text else key


def slug(text: str) -> str:
    return (re.sub(r"[^A-Za-z0-9.+-]+", "-", text.replace("*", "-star")).strip("-.") or "variant")[:80]


def _shown(acceleration: Acceleration) -> float | None:
    """The ratio that tables show, if there is one for the whole generation."""
    if not isinstance(acceleration, Merging) or acceleration.config.varies:
        return None
    return acceleration.config.number("ratio")
