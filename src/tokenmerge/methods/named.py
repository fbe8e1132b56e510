"""Every method by the name that commands and result files use, with its settings: the one table of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import ConfigError, hint
from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.sampled_keys import SampledKeys
from tokenmerge.methods.skip_steps import SkipSteps
from tokenmerge.methods.tile_mean import TileMean
from tokenmerge.methods.todo import ToDo
from tokenmerge.methods.tofu import ToFu
from tokenmerge.methods.toma import ToMA
from tokenmerge.methods.tomesd import ToMeSD


@dataclass(frozen=True)
class NamedMethod:
    """A method with its settings, and a line that says what it is."""

    make: Callable[[], MergeConfig]
    summary: str


METHODS: dict[str, NamedMethod] = {
    "tile-mean": NamedMethod(TileMean, "the mean of each tile, corrected by full steps"),
    "sampled-keys": NamedMethod(
        SampledKeys, "self-attention reads one key of each tile: closest to the unmerged image in a UNet"
    ),
    "toma": NamedMethod(ToMA, "ToMA with 4 x 4 tiles and proportional attention, every step merged"),
    "toma-global": NamedMethod(ToMA.paper, "the paper's ToMA: selection per stripe, assignment over the whole image"),
    "toma-stripe": NamedMethod(ToMA.paper_stripe, "the paper's ToMA-stripe: selection and assignment per stripe"),
    "toma-tile": NamedMethod(ToMA.paper_tile, "the paper's ToMA-tile: selection and assignment per 8 x 8 tile"),
    "toma-block": NamedMethod(ToMA.paper_block, "the paper's ToMA*: merged once per block"),
    "toma-pinv": NamedMethod(ToMA.paper_pinv, "the paper's ToMA, unmerged by the pseudo-inverse"),
    "toma-released": NamedMethod(ToMA.released, "the authors' released code: ToMA-tile at every third step"),
    "toma-stack": NamedMethod(lambda: ToMA(scope="stack"), "toma merged once per run of blocks: the least overhead"),
    "tomesd": NamedMethod(ToMeSD, "ToMeSD: similar tokens of the finest level averaged, self-attention only"),
    "tofu": NamedMethod(ToFu, "ToFu: ToMeSD's matching, pruning early blocks and norm-preserving averages later"),
    "todo": NamedMethod(ToDo, "ToDo: keys and values downsampled, all queries kept; its ratio is 0.75 unless given"),
    "skip-steps": NamedMethod(SkipSteps, "no token merged; one denoising step in two computed, the others forecast"),
    "lower-bound": NamedMethod(LowerBound, "random projections: ruins the image, shows the best speed possible"),
}


def takes_ratio(name: str) -> bool:
    """Whether a named method has a ratio. The others merge by the size of a tile."""
    return METHODS[name].make().has_option("ratio")


def _instead(config: MergeConfig) -> str:
    if not config.has_option("tile"):
        return f"its options are {', '.join(field.name for field in dataclasses.fields(config))}."
    return "its tile decides how many tokens are merged. Set tile=2 for 0.75 or tile=4 for 0.9375 of them."


def named_config(name: str, ratio: Any = None, options: Mapping[str, Any] | None = None) -> MergeConfig:
    """The config of a named method, with `ratio` and any further options instead of its defaults.

    >>> named_config("toma-tile", ratio=0.25, options={"tile": [4, 4]}).tile
    (4, 4)
    """
    if name not in METHODS:
        raise ConfigError(f"method {name!r} is not known: {hint(name, METHODS)}")
    preset = METHODS[name].make()
    given = dict(options or {})
    if ratio is not None:
        if not preset.has_option("ratio"):
            raise ConfigError(f"method {name!r} has no ratio: {_instead(preset)}")
        given = {"ratio": ratio, **given}
    values = {field.name: getattr(preset, field.name) for field in dataclasses.fields(preset)}
    return type(preset).build({**values, **given})
