"""A method where it cannot work is an error that says why and what to use."""

from __future__ import annotations

import pytest
from checks import in_turn
from tiny_models import TINY_MODELS, TinyModel, made, tiny

import tokenmerge as tm
from tokenmerge.errors import ConfigError

HAVE_SELF_ATTENTION = [model for model in TINY_MODELS if model.merges_keys and model.separate_keys]


@pytest.mark.parametrize("model", [model for model in TINY_MODELS if model not in HAVE_SELF_ATTENTION], ids=str)
def test_separate_keys_need_self_attention(model: TinyModel) -> None:
    with pytest.raises(ConfigError, match=r"does not fit .*no self-attention.*keys='merged'"):
        tm.apply(made(model.build), tm.ToMA(keys="sampled"))


@in_turn(
    "model, config",
    [tm.ToDo(), tm.SampledKeys(), tm.ToMA(keys="sampled"), tm.TileMean(keys="all"), tm.ToMA(keys="all")],
    HAVE_SELF_ATTENTION,
)
def test_separate_keys_fit_every_self_attention(model: TinyModel, config: tm.MergeConfig) -> None:
    tm.apply(made(model.build), config)


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = made(tiny("sana").build)
    with pytest.raises(ConfigError):
        tm.apply(model, tm.ToMA(keys="all"))
    tm.apply(model, tm.TileMean())
