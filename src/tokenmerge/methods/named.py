"""Every method by the name that commands and result files use, with its settings: the one table of them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmerge.config.base import MergeConfig
from tokenmerge.errors import ConfigError
from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.skip_steps import SkipSteps
from tokenmerge.methods.todo import ToDo
from tokenmerge.methods.tofu import ToFu
from tokenmerge.methods.toma import ToMA
from tokenmerge.methods.tomesd import ToMeSD


@dataclass(frozen=True)
class NamedMethod:
    """A method with its settings, and a line that says what it is."""

    make: Callable[[], MergeConfig]
    summary: str
    ratio_field: str = "ratio"  # what a ratio is of


METHODS: dict[str, NamedMethod] = {
    "toma": NamedMethod(ToMA.plain, "ToMA, every step merged alike: 4 x 4 tiles, proportional attention"),
    "toma-global": NamedMethod(ToMA.paper, "the paper's ToMA: selection per stripe, assignment over the whole image"),
    "toma-stripe": NamedMethod(ToMA.paper_stripe, "the paper's ToMA-stripe: selection and assignment per stripe"),
    "toma-tile": NamedMethod(ToMA.paper_tile, "the paper's ToMA-tile: selection and assignment per 8 x 8 tile"),
    "toma-block": NamedMethod(ToMA.paper_block, "the paper's ToMA*: merged once per block"),
    "toma-released": NamedMethod(ToMA.released, "the authors' released code: ToMA-tile at every third step"),
    "toma-keys": NamedMethod(
        ToMA.keys, "keys and values alone, one of each 2 x 2 tile: closest to the picture in a UNet", "kv_ratio"
    ),
    "toma-detail": NamedMethod(ToMA, "tm.ToMA() itself: some steps whole, whose detail is given to the others"),
    "toma-stack": NamedMethod(
        lambda: ToMA.plain(scope="stack"), "toma merged once per run of blocks: the least overhead"
    ),
    "tomesd": NamedMethod(ToMeSD, "ToMeSD: similar tokens of the finest level averaged, self-attention only"),
    "tofu": NamedMethod(ToFu, "ToFu: ToMeSD's matching, pruning early blocks and norm-preserving averages later"),
    "todo": NamedMethod(ToDo, "ToDo: keys and values downsampled, queries whole; its ratio is 0.75 unless given"),
    "skip-steps": NamedMethod(SkipSteps, "no token merged; one denoising step in two computed, the others forecast"),
    "lower-bound": NamedMethod(LowerBound, "random projections: ruins the image, shows the best speed possible"),
}


def ratio_field(name: str) -> str:
    """The field of a method's config that its ratio stands in; of any other method "ratio"."""
    return METHODS[name].ratio_field if name in METHODS else "ratio"


def named_config(name: str, ratio: Any = None, options: Mapping[str, Any] | None = None) -> MergeConfig:
    """The config of a named method, with `ratio` and any further options in the place of its own.

    >>> named_config("toma-tile", ratio=0.25, options={"tile": [4, 4]}).tile
    (4, 4)
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(METHODS)}."
        raise ConfigError(f"method {name!r} is not known: {hint}")
    preset = METHODS[name].make()
    values = {field.name: getattr(preset, field.name) for field in dataclasses.fields(preset)}
    if ratio is not None:
        values[METHODS[name].ratio_field] = ratio
    # Checked as a whole: kv_ratio, say, allows a ratio that would be an error without it.
    return type(preset).build({**values, **(options or {})})
