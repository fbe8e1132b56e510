"""Scope None: whole runs of blocks where options, model and call allow it, single parts elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SMALL, session_on
from tiny_models import TINY_MODELS, TinyModel, made, tiny

import tokenmerge as tm

TILES: dict[str, Any] = {"ratio": 0.75, "tile": (2, 2), "correction": tm.FullSteps(every=2, within=None), **SMALL}
TIMESTEPS = [1000.0, 990.0, 980.0, 970.0]


def generate(model: Any, what: TinyModel) -> list[torch.Tensor]:
    return [what.call(model, (1, 2), what.grid(8, 8), timestep) for timestep in TIMESTEPS]


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({}, "stack"),
        ({"scope": "site"}, "site"),
        ({"scope": "block"}, "block"),
        ({"correction": None}, "site"),
        ({"parts": ("self", "mlp")}, "site"),
        ({"keys": "all"}, "site"),
        ({"keys": "sampled"}, "site"),
        ({"ratio": [0.2, 0.5]}, "stack"),
    ],
    ids=str,
)
def test_what_suits_the_options(options: dict[str, Any], scope: str) -> None:
    config = tm.ToMA(**{"correction": tm.FullSteps(), **options})
    assert config.merged_per == scope
    assert tm.MergeConfig.from_dict(config.to_dict()) == config


def test_methods_that_merge_no_blocks_stay_at_parts() -> None:
    assert tm.ToDo(scope=None).merged_per == "site"
    assert tm.ToMeSD(correction=tm.FullSteps(), parts=("self", "cross", "mlp")).merged_per == "stack"


@pytest.mark.parametrize("what", TINY_MODELS, ids=str)
def test_what_suits_the_model(what: TinyModel) -> None:
    """It is what asking for it gives."""
    model = made(what.build)
    scope = "stack" if "stack" in what.scopes else "site"
    with tm.merged(model, tm.ToMA(scope=scope, **TILES)):  # type: ignore[arg-type]
        asked = generate(model, what)
    with tm.merged(model, tm.ToMA(**TILES)) as handle:
        chosen = generate(model, what)
        assert f"merged per {scope}" in str(handle.explain())
    assert all(torch.equal(one, other) for one, other in zip(asked, chosen, strict=True))


def test_a_call_that_needs_tokens_in_their_order_gets_it() -> None:
    from diffusers import PyramidAttentionBroadcastConfig

    what = tiny("flux")
    model: Any = made(what.build)
    cache = PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 1001),
        current_timestep_callback=lambda: 500,
    )
    images = {}
    for scope in ("site", None, "stack"):
        with tm.merged(model, tm.ToMA(scope=scope, **TILES)) as handle:  # type: ignore[arg-type]
            before = generate(model, what)
            if scope != "stack":
                model.enable_cache(cache)
                images[scope] = generate(model, what)
                assert "merged per site" in str(handle.explain())
                model.disable_cache()
                if scope is None:
                    assert session_on(model).config.scope == "site"  # until the next call
            images[f"{scope} again"] = generate(model, what)
            assert all(torch.equal(a, b) for a, b in zip(before, images[f"{scope} again"], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(images["site"], images[None], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(images["stack again"], images["None again"], strict=True))
