"""Sampled keys are other ones at every step, and the same ones in every image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SMALL, operators_on
from tiny_models import made, tiny
from torch._dynamo.utils import counters

import tokenmerge as tm

KEYS = tm.SampledKeys(**SMALL)
TIMESTEPS = (1000.0, 990.0, 980.0)


def sampled(model: Any, what: Any, seeds: tuple[int, ...] = (1, 2)) -> list[torch.Tensor]:
    """The keys of the first block at every step."""
    keys = []
    for timestep in TIMESTEPS:
        what.call(model, seeds, what.grid(8, 8), timestep)
        operator = operators_on(model).keys
        assert operator is not None
        assert operator.destinations is not None
        keys.append(operator.destinations.clone())
    return keys


@pytest.mark.parametrize("name", ["sd15", "sdxl", "pixart"])
def test_every_step_has_its_own_keys_and_every_image_the_same(name: str) -> None:
    what = tiny(name)
    model = made(what.build)
    with tm.merged(model, KEYS):
        first, other = sampled(model, what), sampled(model, what, seeds=(3, 4))
    assert len({tuple(keys.flatten().tolist()) for keys in first}) == len(TIMESTEPS)
    assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["sdxl", "flux", "wan"])  # keys by argument, or inside attention
@pytest.mark.parametrize("regional", [True, False])
def test_no_step_compiles_again(regional: bool, name: str) -> None:
    what = tiny(name)
    expected_model, model = made(what.build), made(what.build)
    with tm.merged(expected_model, KEYS):
        expected = [what.call(expected_model, (1,), what.grid(8, 8), timestep) for timestep in TIMESTEPS]
    torch._dynamo.reset()
    counters.clear()
    tm.apply(model, KEYS)
    if regional:
        model.compile_repeated_blocks(fullgraph=True, backend="aot_eager")
    else:
        model.compile(backend="aot_eager")
    graphs = []
    for timestep, before in zip(TIMESTEPS, expected, strict=True):
        torch.testing.assert_close(what.call(model, (1,), what.grid(8, 8), timestep), before, atol=1e-5, rtol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    torch._dynamo.reset()
    assert graphs[1] == graphs[2]
