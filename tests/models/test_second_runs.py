"""Full steps also run merged, so that the merging error is known: when they do, and when not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, session_on
from short_runs import FAMILIES, TIMESTEPS
from tiny_models import TinyModel, made, tiny
from torch import nn

import tokenmerge as tm

MOST: dict[str, Any] = {"ratio": 0.875, "tile": (4, 4), **SMALL}


def second_runs(model: nn.Module, timesteps: list[float], what: TinyModel, **options: Any) -> list[int]:
    """How often the model's first block with tokens runs at each step."""
    calls: list[int] = []
    with tm.merged(model, tm.ToMA(correction=tm.FullSteps(every=2, within=None), **{**MOST, **options})):
        block = session_on(model).stacks[0].described.merging[0].module
        handle = block.register_forward_hook(lambda *_: calls.append(1))
        counts = []
        for timestep in timesteps:
            calls.clear()
            what.call(model, (1,), what.grid(8, 8), timestep)
            counts.append(len(calls))
        handle.remove()
    return counts


@pytest.mark.parametrize("what", FAMILIES, ids=str)
def test_full_steps_also_run_merged(what: TinyModel) -> None:
    model = made(what.build)
    assert second_runs(model, TIMESTEPS[:4], what) == [2, 1, 2, 1]
    assert second_runs(model, TIMESTEPS[:4], what, ratio=0.5) == [2, 1, 2, 1]
    assert second_runs(model, TIMESTEPS[:4], what, ratio=[0.875, 0.5]) == [2, 1, 2, 1]


def test_they_do_not_where_others_would_see_a_second_step() -> None:
    from diffusers import PyramidAttentionBroadcastConfig, apply_pyramid_attention_broadcast

    what = tiny("pixart")
    once = [1, 1, 1, 1]
    # A cache, even on a part that is not merged.
    model: Any = made(what.build)
    cache = PyramidAttentionBroadcastConfig(
        cross_attention_block_skip_range=2,
        cross_attention_timestep_skip_range=(-1, 1001),
        current_timestep_callback=lambda: 500,
    )
    apply_pyramid_attention_broadcast(model, cache)
    assert second_runs(model, TIMESTEPS[:4], what, scope="site", parts=("self",)) == once
    # A cache of another kind, in the place of the model's forward: on the model, or in its class.
    model = made(what.build)
    forward = model.forward
    model.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    assert second_runs(model, TIMESTEPS[:4], what) == once
    model = made(what.build)
    whole = type(model).forward

    def replaced(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return whole(self, *args, **kwargs)

    replaced.__signature__ = inspect.signature(whole)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "forward", replaced)
        assert second_runs(model, TIMESTEPS[:4], what) == once
    # Hooks that may change what the model is given.
    model = made(what.build)
    handle = model.register_forward_pre_hook(lambda *_: None)
    assert second_runs(model, TIMESTEPS[:4], what) == once
    handle.remove()
    assert second_runs(model, TIMESTEPS[:4], what) == [2, 1, 2, 1]


@pytest.mark.parametrize("what", [tiny("pixart"), tiny("sd15"), tiny("flux")], ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_training_with_checkpoints_goes_through_full_steps(what: TinyModel, scope: Any) -> None:
    model: Any = what.build()
    model.enable_gradient_checkpointing()
    model.train()
    inputs = what.inputs((1,), what.grid(8, 8))
    with tm.merged(model, tm.ToMA(scope=scope, correction=tm.FullSteps(every=3, within=None), **MOST)):
        for timestep in TIMESTEPS[:4]:
            inputs["timestep"] = torch.full_like(inputs["timestep"], timestep)
            model(**inputs, return_dict=False)[0].square().sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())
