"""What explain() says of full steps: how they count, and what is cached from them."""

from __future__ import annotations

from typing import Any

import pytest
from checks import SMALL
from short_runs import TIMESTEPS
from tiny_models import made, tiny

import tokenmerge as tm

TILES: dict[str, Any] = {"ratio": 0.5, "tile": (4, 4), **SMALL}


def test_explain_counts_what_is_cached_over_the_steps() -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.TileMean(tile=2, correction=tm.FullSteps(every=2), **SMALL)) as handle:
        cached = []
        for timestep in TIMESTEPS:
            what.call(model, (1, 2), what.grid(8, 8), timestep)
            measured = handle.explain().models[0].measured
            assert measured is not None
            cached.append(measured.cached_bytes)
    channels = model.config.num_attention_heads * model.config.attention_head_dim
    one = 2 * (64 + 16) * channels * 4  # what is lost of all tokens, and what merged ones gave
    assert cached == [one, one, 2 * one, 2 * one, 2 * one, 2 * one, 2 * one]


@pytest.mark.parametrize(("scope", "outputs"), [("site", 3 * 3), ("stack", 1)])
def test_explain_says_what_is_cached(scope: Any, outputs: int) -> None:
    what = tiny("pixart")
    model = made(what.build)
    correction = tm.FullSteps(every=2)
    with tm.merged(model, tm.ToMA(scope=scope, correction=correction, **TILES)) as handle:
        for timestep in TIMESTEPS[:2]:
            what.call(model, (1, 2), what.grid(8, 8), timestep)
            measured = handle.explain().models[0].measured
            assert measured is not None
            channels = model.config.num_attention_heads * model.config.attention_head_dim
            # Of all three blocks self-attention, cross-attention and MLP; or of their run what it has added: the error
            # of every token, and what the merged half gave.
            assert measured.cached_bytes == outputs * 2 * (64 + 32) * channels * 4
        assert "MB cached from earlier steps" in str(handle.explain())
        handle.reset()
        assert "cached" not in str(handle.explain())


def test_explain_counts_the_full_steps() -> None:
    model = made(tiny("pixart").build)
    with tm.merged(model, tm.ToMA(scope="site", **TILES)) as handle:
        plain = handle.explain(size=(128, 128)).models[0].multiply_adds
    with tm.merged(model, tm.ToMA(scope="site", correction=tm.FullSteps(every=4, within=None), **TILES)) as handle:
        explanation = handle.explain(size=(128, 128))
    work = explanation.models[0].multiply_adds
    assert "the first step full, then one every 4 steps" in str(explanation)
    assert "of the noise" not in str(explanation)  # exactly as said
    assert work.steady == plain.steady  # the correction is but added
    assert work.average == pytest.approx((3 * work.steady + work.full) / 4)


def test_explain_counts_that_full_steps_also_run_merged() -> None:
    model = made(tiny("flux").build)
    most = {**TILES, "ratio": 0.875, "scope": "site"}
    with tm.merged(model, tm.ToMA(**most)) as handle:
        plain = handle.explain(size=(128, 128)).models[0].multiply_adds
    with tm.merged(model, tm.ToMA(correction=tm.FullSteps(every=4, within=None), **most)) as handle:
        work = handle.explain(size=(128, 128)).models[0].multiply_adds
    assert work.steady == plain.steady  # detail is but added
    assert work.full == work.unmerged + work.select  # and makes its plan there
    assert work.average == pytest.approx((work.full + 3 * work.steady) / 4)
