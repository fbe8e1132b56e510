"""Ratios that change: lists over the steps, their value at each step, and what is refused."""

import json

import pytest

from tokenmerge import MergeConfig, ToDo, ToFu, ToMA, ToMeSD
from tokenmerge.errors import ConfigError

METHODS = [ToMA, ToMeSD, ToFu, ToDo]


@pytest.mark.parametrize("method", METHODS)
def test_a_number_is_the_same_everywhere(method):
    config = method(ratio=0.3)
    assert not config.varies
    assert [config.at(progress).ratio for progress in (0, 0.5, 0.99)] == [0.3] * 3


@pytest.mark.parametrize("method", METHODS)
def test_a_list_is_stretched_over_the_steps(method):
    config = method(ratio=[0.1, 0.2, 0.3, 0.4])
    assert config.varies
    assert [config.at(step / 8).ratio for step in range(8)] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4]
    assert config.at(1.0).ratio == 0.4


def test_progress_that_falls_short_by_rounding_still_counts():
    config = ToMA(ratio=[0.1, 0.4, 0.6])
    assert config.at(1 - 666 / 999).ratio == 0.4
    assert config.at(1 - 333 / 999).ratio == 0.6


def test_zero_leaves_alone():
    config = ToMA(ratio=[0, 0.5])
    assert config.at(0.0) is None
    assert config.at(0.5).ratio == 0.5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "value", [[0.1, 1.0], [-0.1], ["half"], [], [[]], [0.1, [0.2]], [None], [0.1, True], [[0.3, 0.6]]]
)
def test_a_list_of_anything_else_is_refused(method, value):
    with pytest.raises(ConfigError, match=r"ratio is .*(not including, 1|0 throughout)"):
        method(ratio=value)


@pytest.mark.parametrize("method", METHODS)
def test_a_list_of_nothing_but_zero_is_refused(method):
    with pytest.raises(ConfigError, match="nothing would be merged"):
        method(ratio=[0, 0.0])


def test_tomesd_looks_at_every_number_of_a_list():
    with pytest.raises(ConfigError, match=r"at most 0\.75"):
        ToMeSD(ratio=[0.2, 0.8])


def test_a_ratio_that_changes_has_no_layout_of_its_own():
    with pytest.raises(ConfigError, match=r"ask for it with at\(progress\)"):
        ToMA(ratio=[0.2, 0.4]).layout((16, 16))


def test_lists_are_saved():
    config = ToMA(ratio=[0.2, 0.5], skip_blocks=(2, 1), select_every=(4, 2))
    assert MergeConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("method", METHODS)
def test_a_function_is_refused(method):
    with pytest.raises(ConfigError, match=r"ratio is <function .*a list of numbers over the steps"):
        method(ratio=lambda progress, depth: 0.5)
