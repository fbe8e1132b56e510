"""The table of named methods: every name builds, takes a ratio and options, and explains what is wrong."""

from __future__ import annotations

import pytest

from tokenmerge import FullSteps, LowerBound, SampledKeys, TileMean, ToDo, ToFu, ToMA, ToMeSD
from tokenmerge.errors import ConfigError
from tokenmerge.methods.named import METHODS, named_config, takes_ratio


@pytest.mark.parametrize("name", METHODS)
def test_every_name_takes_a_ratio(name: str) -> None:
    if takes_ratio(name):
        assert named_config(name, ratio=0.6).ratio == 0.6
    assert named_config(name) == METHODS[name].make()
    assert METHODS[name].summary


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("toma", ToMA()),
        ("toma-global", ToMA.paper()),
        ("toma-stripe", ToMA.paper_stripe()),
        ("toma-tile", ToMA.paper_tile()),
        ("toma-block", ToMA.paper_block()),
        ("sampled-keys", SampledKeys()),
        ("tile-mean", TileMean()),
        ("toma-stack", ToMA(ratio=0.5, scope="stack")),
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
        ratio=0.3, scope="site", tile=(4, 4), proportional=False, select_every=(10, 5)
    )
    assert named_config("tile-mean", options={"correction": {"every": 3}}) == TileMean(correction=FullSteps(every=3))


def test_errors_name_what_is_near() -> None:
    with pytest.raises(ConfigError, match="did you mean tomesd"):
        named_config("tomsd")
    with pytest.raises(ConfigError, match="did you mean region"):
        named_config("toma", options={"regin": "tile"})
    with pytest.raises(ConfigError, match="ratio is 2"):
        named_config("toma-stripe", ratio=2)


@pytest.mark.parametrize("name", ["tile-mean", "sampled-keys"])
def test_methods_of_tiles_have_no_ratio(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has no ratio: its tile decides .*tile=2 for 0\.75"):
        named_config(name, ratio=0.5)
