"""The table of named methods: every name builds, takes a ratio and options, and explains what is wrong."""

from __future__ import annotations

import pytest

from tokenmerge import LowerBound, ToDo, ToFu, ToMA, ToMeSD
from tokenmerge.errors import ConfigError
from tokenmerge.methods.named import METHODS, named_config


@pytest.mark.parametrize("name", METHODS)
def test_every_name_takes_a_ratio(name: str) -> None:
    config = named_config(name, ratio=0.6)
    assert getattr(config, METHODS[name].ratio_field) == 0.6
    assert named_config(name) == METHODS[name].make()
    assert METHODS[name].summary


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("toma", ToMA(ratio=0.5, scope="site", detail_every=0)),
        ("toma-global", ToMA.paper()),
        ("toma-stripe", ToMA.paper_stripe()),
        ("toma-tile", ToMA.paper_tile()),
        ("toma-block", ToMA.paper_block()),
        ("toma-keys", ToMA.keys()),
        ("toma-detail", ToMA()),
        ("toma-stack", ToMA(ratio=0.5, scope="stack", detail_every=0)),
        ("tomesd", ToMeSD()),
        ("tofu", ToFu()),
        ("todo", ToDo()),
        ("lower-bound", LowerBound()),
    ],
)
def test_names_stand_for_what_they_say(name: str, config: object) -> None:
    assert named_config(name) == config


def test_options_go_over_the_preset() -> None:
    assert named_config("toma-tile", 0.3, {"tile": [4, 4]}) == ToMA(
        ratio=0.3, scope="site", tile=(4, 4), proportional=False, select_every=10, detail_every=0
    )
    assert named_config("toma", ratio=0, options={"kv_ratio": 0.5}).ratio == 0


def test_errors_name_what_is_near() -> None:
    with pytest.raises(ConfigError, match="did you mean tomesd"):
        named_config("tomsd")
    with pytest.raises(ConfigError, match="did you mean region"):
        named_config("toma", options={"regin": "tile"})
    with pytest.raises(ConfigError, match="ratio is 2"):
        named_config("toma-stripe", ratio=2)


def test_a_ratio_of_keys_is_a_ratio_of_keys() -> None:
    assert named_config("toma-keys", 0.5) == ToMA.keys(0.5)
    assert (ToMA.keys(0.5).ratio, ToMA.keys(0.5).kv_ratio) == (0, 0.5)
