"""What explain() says of whole steps: how they count, and what is held of them."""

from __future__ import annotations

from typing import Any

import pytest
from checks import SMALL
from short_runs import TIMESTEPS
from tiny_models import made, tiny

import tokenmerge as tm

TILES: dict[str, Any] = {"ratio": 0.5, "tile": (4, 4), **SMALL}


def test_explain_counts_what_was_learnt_as_held() -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.ToMA(scope="stack", tile=(2, 2), ratio=0.75, detail_every=2, **SMALL)) as handle:
        held = []
        for timestep in TIMESTEPS:
            what.call(model, (1, 2), what.grid(8, 8), timestep)
            measured = handle.explain().models[0].measured
            assert measured is not None
            held.append(measured.held)
    channels = model.config.num_attention_heads * model.config.attention_head_dim
    one = 2 * (64 + 16) * channels * 4  # what is lost of all tokens, and what merged ones gave
    assert held == [0, one, one, 2 * one, 2 * one, 2 * one, 2 * one]


@pytest.mark.parametrize(("scope", "outputs"), [("site", 3 * 3), ("stack", 1)])
def test_explain_says_what_is_held(scope: Any, outputs: int) -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.ToMA(scope=scope, **TILES)) as handle:
        for call, timestep in enumerate(TIMESTEPS[:2]):
            what.call(model, (1, 2), what.grid(8, 8), timestep)
            measured = handle.explain().models[0].measured
            assert measured is not None
            channels = model.config.num_attention_heads * model.config.attention_head_dim
            # Of all three blocks self-attention, cross-attention and MLP; or of their run what it has added: the error
            # of every token, and what the merged half gave.
            assert measured.held == call * outputs * 2 * (64 + 32) * channels * 4
        assert "MB held from earlier steps" in str(handle.explain())
        handle.reset()
        assert "held" not in str(handle.explain())


def test_explain_counts_the_whole_steps() -> None:
    model = made(tiny("pixart").build)
    with tm.merged(model, tm.ToMA(scope="site", detail_every=0, **TILES)) as handle:
        plain = handle.explain(size=(128, 128)).models[0].multiply_adds
    with tm.merged(model, tm.ToMA(scope="site", detail_every=4, thin_keys=False, **TILES)) as handle:
        explanation = handle.explain(size=(128, 128))
    work = explanation.models[0].multiply_adds
    assert "one whole for its detail every 4 steps" in str(explanation)
    assert "of the noise" not in str(explanation)  # exactly as said
    assert work.steady == plain.steady  # the correction is but added
    assert work.average == pytest.approx((3 * work.steady + work.whole) / 4)


def test_explain_counts_that_whole_steps_run_merged_as_well() -> None:
    model = made(tiny("pixart").build)
    most = {**TILES, "ratio": 0.875, "scope": "site"}
    with tm.merged(model, tm.ToMA(detail_every=0, **most)) as handle:
        plain = handle.explain(size=(128, 128)).models[0].multiply_adds
    with tm.merged(model, tm.ToMA(detail_every=4, thin_keys=False, **most)) as handle:
        work = handle.explain(size=(128, 128)).models[0].multiply_adds
    assert work.steady == plain.steady  # detail is but added
    assert work.whole == work.unmerged + work.select  # and makes its plan there
    assert work.average == pytest.approx((work.whole + 3 * work.steady) / 4)
