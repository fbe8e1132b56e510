"""A method where it cannot work is an error that says why and what to use."""

from __future__ import annotations

import pytest
from tiny_models import TINY_MODELS, TinyModel, made, tiny

import tokenmerge as tm
from tokenmerge.errors import ConfigError

HAVE_SELF_ATTENTION = [model for model in TINY_MODELS if model.merges_keys and model.separate_keys]


class Averaging(tm.ToDo):
    """A method of somebody's own that merges keys apart, and does not say that it picks them."""

    picks_keys = False


@pytest.mark.parametrize("model", [model for model in HAVE_SELF_ATTENTION if not model.own_keys], ids=str)
def test_keys_that_are_not_picked_where_they_are_made_with_queries(model: TinyModel) -> None:
    with pytest.raises(ConfigError, match=r"does not fit .*from the same tokens.*Use ToMA or ToDo"):
        tm.apply(made(model.build), Averaging())


@pytest.mark.parametrize("model", [model for model in TINY_MODELS if model not in HAVE_SELF_ATTENTION], ids=str)
def test_keys_apart_where_there_are_none(model: TinyModel) -> None:
    with pytest.raises(ConfigError, match=r"does not fit .*no self-attention.*Use ToMA without kv_ratio"):
        tm.apply(made(model.build), tm.ToMA(ratio=0.5, kv_ratio=0.75))


@pytest.mark.parametrize("model", HAVE_SELF_ATTENTION, ids=str)
@pytest.mark.parametrize(
    "config",
    [
        tm.ToDo(),
        tm.ToMA.keys(),
        tm.ToMA(ratio=0.5, kv_ratio=0.75),
        tm.ToMA(kv_ratio=0),
    ],
    ids=str,
)
def test_keys_apart_where_they_can_be(model: TinyModel, config: tm.MergeConfig) -> None:
    tm.apply(made(model.build), config)


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = made(tiny("sana").build)
    with pytest.raises(ConfigError):
        tm.apply(model, tm.ToMA(kv_ratio=0))
    tm.apply(model, tm.ToMA())
