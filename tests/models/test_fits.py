"""A method where it cannot work is an error that says why and what to use."""

from __future__ import annotations

import pytest
from tiny_models import TINY_MODELS, TinyModel, made, tiny

import tokenmerge as tm
from tokenmerge.errors import ConfigError


@pytest.mark.parametrize("model", [model for model in TINY_MODELS if not model.own_keys and model.merges_keys], ids=str)
@pytest.mark.parametrize("config", [tm.ToDo(), tm.ToMA(ratio=0, kv_ratio=0.5), tm.ToMA(kv_ratio=0)], ids=str)
def test_keys_apart_where_queries_and_keys_are_one(model: TinyModel, config: tm.MergeConfig) -> None:
    with pytest.raises(ConfigError, match=r"does not fit .*keys cannot be merged apart.*Use ToMA without"):
        tm.apply(made(model.build), config)


@pytest.mark.parametrize("model", [model for model in TINY_MODELS if model.own_keys], ids=str)
def test_keys_apart_where_they_can_be(model: TinyModel) -> None:
    tm.apply(made(model.build), tm.ToDo())


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = made(tiny("flux").build)
    with pytest.raises(ConfigError):
        tm.apply(model, tm.ToDo())
    tm.apply(model, tm.ToMA())
