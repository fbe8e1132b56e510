"""What explain() says of full steps: how they count, and what is cached from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SMALL
from short_runs import TIMESTEPS
from tiny_models import made, tiny

import tokenmerge as tm
from tokenmerge.models import published

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
    # Of two full steps, with room for the second from the first on: the error of all tokens, what merged ones gave, and
    # the fit to it.
    assert cached == [2 * 2 * (64 + 16 + 16) * channels * 4] * len(TIMESTEPS)


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
            # of every token, what the merged half gave, and the fit to it; of two full steps.
            assert measured.cached_bytes == outputs * 2 * 2 * (64 + 32 + 32) * channels * 4
            assert handle.explain().models[0].cached_bytes == measured.cached_bytes  # predicted
        assert "MB cached from earlier steps" in str(handle.explain())
        handle.reset()
        assert "cached" not in str(handle.explain())
        assert "MB kept from step to step" in str(handle.explain())


@pytest.mark.parametrize(("size", "megabytes"), [(1024, 209.7), (2048, 838.9)])
def test_what_sdxl_keeps_is_known_before_it_runs(size: int, megabytes: float) -> None:
    """In half precision, for a batch of two: the errors of 11 transformers at two full steps, most of it."""
    known = published.architecture("sdxl")
    # One block for each transformer: what is kept does not depend on how many there are.
    config = {**known.config, "transformer_layers_per_block": (1, 1, 1)}
    model = published.build_from_config(known.class_name, config, dtype=torch.bfloat16)
    with tm.merged(model, tm.TileMean()) as handle:
        explained = handle.explain(size=(size, size), batch=2)
    fine, coarse = (size // 16) ** 2 * 640, (size // 32) ** 2 * 1280
    tokens = 2 * (5 * fine + 6 * coarse)  # of a batch, at one step
    assert explained.models[0].cached_bytes == 2 * (2 * tokens + 2 * 4 * tokens // 16)
    assert explained.models[0].cached_bytes / 1e6 == pytest.approx(megabytes, abs=0.1)
    assert explained.models[0].measured is None


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
