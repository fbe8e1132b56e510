"""The variants of an experiment: each method at each of its ratios, and the unmerged baseline before them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import ConfigError
from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.experiment import Experiment, VariantChoice
from tokenmerge.methods.named import named_config, ratio_field


@dataclass(frozen=True)
class Variant:
    """One column of images."""

    key: str  # its folder's name
    name: str  # what tables call it
    ratio: float | None = None
    config: MergeConfig | None = None  # None: nothing is merged

    @property
    def label(self) -> str:
        return self.name if self.ratio is None else f"{self.name}, r = {self.ratio:g}"

    def config_dict(self) -> dict[str, Any] | None:
        return None if self.config is None else self.config.to_dict()


BASELINE = Variant("baseline", "baseline")


def variants_of(experiment: Experiment) -> list[Variant]:
    """The baseline first, then every variant at every ratio. Configs are built, so a wrong option shows at once."""
    variants = [BASELINE]
    for choice in experiment.variants:
        ratios: Sequence[float | None] = experiment.ratios if choice.ratios is None else choice.ratios
        for ratio in ratios or [None]:
            variants.append(_variant(choice, ratio))
    keys = [variant.key.lower() for variant in variants]  # some disks take ToMA and toma for one name
    for variant in variants:
        if keys.count(variant.key.lower()) > 1:
            raise ExperimentError(
                f"variant {variant.name!r} would share the folder images/{variant.key} with another: give the variants "
                f"names that differ in letters or digits, and each ratio once."
            )
    return variants


def _variant(choice: VariantChoice, ratio: float | None) -> Variant:
    try:
        config = named_config(choice.method, ratio, choice.options)
    except (ConfigError, TypeError) as error:
        raise ExperimentError(f"variant {choice.name!r}: {error}") from None
    slug = re.sub(r"[^A-Za-z0-9.+-]+", "-", choice.name.replace("*", "-star")).strip("-.") or "variant"
    key = slug[:80] if ratio is None else f"{slug[:80]}_r{ratio:g}"
    shown = None if config.varies else config.number(ratio_field(choice.method))
    return Variant(key, choice.name, shown, config)
