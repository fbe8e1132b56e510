"""torch.compile: blocks compile without a break, the images are the same, and graphs do not pile up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from checks import in_turn
from tiny_models import TINY_MODELS, made
from torch._dynamo.utils import counters

import tokenmerge as tm

# One for each way of telling attention what its keys stand for: two kinds of masks, and PyTorch's attention inside.
MODELS = [model for model in TINY_MODELS if model.name in ("sdxl", "flux", "qwen-image")]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@in_turn(
    "tiny, options",
    [
        {"scope": "site"},
        {"scope": "stack"},
        {"scope": "site", "ratio": 0.5, "keys": "sampled"},
        {"scope": "site", "ratio": 0.875, "tile": (4, 4)},
        {"scope": "stack", "ratio": 0.875, "tile": (4, 4)},
    ],
    MODELS,
)
def test_regional_compile_has_no_breaks_and_a_bounded_number_of_graphs(tiny: Any, options: Any) -> None:
    grid = tiny.grid(8, 8)
    schedule = {"select_every": (4, 2)}
    config = tm.ToMA(min_tokens=0, skip_blocks=0, **schedule, **{"ratio": 0.75, "tile": (2, 2), **options})
    timesteps = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    eager = made(tiny.build)
    with tm.merged(eager, config):
        expected = [tiny.call(eager, [0], grid, timestep) for timestep in timesteps]
    model = made(tiny.build)
    handle = tm.apply(model, config)
    model.compile_repeated_blocks(fullgraph=True, backend="aot_eager")
    got = [tiny.call(model, [0], grid, timestep) for timestep in timesteps]
    graphs = counters["stats"]["unique_graphs"]
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert not counters["graph_break"]
    # A second generation meets next to nothing new: around parts, SDXL has one more graph then. A third meets nothing.
    for timestep in timesteps:
        tiny.call(model, [0], grid, timestep)
    assert counters["stats"]["unique_graphs"] <= graphs + 1
    graphs = counters["stats"]["unique_graphs"]
    for timestep in timesteps:
        tiny.call(model, [0], grid, timestep)
    assert counters["stats"]["unique_graphs"] == graphs
    handle.remove()


@in_turn("tiny, scope", ["site", "stack"], MODELS)
def test_after_three_full_steps_there_are_no_new_graphs(tiny: Any, scope: Any) -> None:
    """What is cached from full steps grows up to two of them, and no further."""
    config = tm.ToMA(
        ratio=0.75, tile=(2, 2), correction=tm.FullSteps(every=2, within=None), scope=scope, min_tokens=0, skip_blocks=0
    )
    model = made(tiny.build)
    with tm.merged(model, config):
        model.compile_repeated_blocks(fullgraph=True, backend="eager")
        graphs = []
        for step in range(12):
            tiny.call(model, [0], tiny.grid(8, 8), 0.9 - 0.05 * step)
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[6:] == graphs[6:7] * 6  # full are 0, 2 and 4


# Over 50 steps, for both shapes of block that the model has. ToMA makes plans inside blocks, the others outside.
GRAPHS = {
    "TileMean": (tm.TileMean(tile=2, min_tokens=16, skip_blocks=0), 3),
    "SampledKeys": (tm.SampledKeys(outliers=2, min_tokens=16, skip_blocks=0), 3),
    "ToMA": (tm.ToMA(ratio=0.5, tile=(2, 2), min_tokens=16, skip_blocks=0), 8),
}


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=() if method == "TileMean" else pytest.mark.long) for method in GRAPHS]
)
def test_a_generation_of_fifty_steps_has_few_graphs_and_the_next_none(method: str) -> None:
    config, most = GRAPHS[method]
    tiny = next(model for model in TINY_MODELS if model.name == "sdxl")
    model = made(tiny.build)
    blocks = [module for module in model.modules() if type(module).__name__ == "BasicTransformerBlock"]
    assert len({tuple(weight.shape for weight in block.parameters()) for block in blocks}) == 2
    graphs = []
    with tm.merged(model, config):
        model.compile_repeated_blocks(fullgraph=True, backend="eager")
        for prompt in (0, 0, 1):
            for step in range(50):
                tiny.call(model, [prompt], tiny.grid(8, 8), 1 - step / 50)
            graphs.append(counters["stats"]["unique_graphs"])
    assert 0 < graphs[0] <= most
    assert graphs == graphs[:1] * 3
    assert not counters["graph_break"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["sd15", "flux"])
def test_inductor_with_reduce_overhead_gives_the_same_images(name: str) -> None:
    """On a CPU this compiles as for CUDA graphs, which only a GPU replays."""
    tiny = next(model for model in TINY_MODELS if model.name == name)
    config = tm.TileMean(tile=2, correction=tm.FullSteps(every=2, within=None), min_tokens=16, skip_blocks=0)
    timesteps = [1 - step / 8 for step in range(6)]
    model = made(tiny.build)
    with tm.merged(model, config):
        expected = [tiny.call(model, [0], tiny.grid(8, 8), timestep) for timestep in timesteps]
    with tm.merged(model, config):
        model.compile_repeated_blocks(fullgraph=True, mode="reduce-overhead")
        got = [tiny.call(model, [0], tiny.grid(8, 8), timestep) for timestep in timesteps]
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert counters["stats"]["unique_graphs"]
    assert not counters["graph_break"]


def test_whole_model_compile_gives_the_same_image() -> None:
    tiny = next(model for model in TINY_MODELS if model.name == "pixart")
    grid = tiny.grid(8, 8)
    config = tm.ToMA(ratio=0.75, min_tokens=0, tile=(2, 2))
    model = made(tiny.build)
    with tm.merged(model, config):
        expected = [tiny.call(model, [0], grid, timestep) for timestep in (0.9, 0.8)]
        compiled = torch.compile(model, backend="aot_eager")
        got = [tiny.call(compiled, [0], grid, timestep) for timestep in (0.9, 0.8)]
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "how", ["regional", *(pytest.param(how, marks=pytest.mark.long) for how in ("whole, in place", "whole, wrapped"))]
)
def test_merging_is_noticed_by_what_was_compiled_before(how: str) -> None:
    """Compiled code looks for hooks when it is made: it must be made again for merging, and let go of it again."""
    tiny = next(model for model in TINY_MODELS if model.name == "flux")
    config = tm.ToMA(ratio=0.75, min_tokens=0, tile=(2, 2), skip_blocks=0)
    model = made(tiny.build)
    unmerged, larger = (tiny.call(model, [0], tiny.grid(8, width)) for width in (8, 12))
    with tm.merged(model, config):
        merged = tiny.call(model, [0], tiny.grid(8, 8))
    compiled = compiled_by(how, model)
    for _ in range(2):
        torch.testing.assert_close(tiny.call(compiled, [0], tiny.grid(8, 8)), unmerged)
        handle = tm.apply(compiled, config)
        torch.testing.assert_close(tiny.call(compiled, [0], tiny.grid(8, 8)), merged)
        handle.remove()
    torch.testing.assert_close(tiny.call(compiled, [0], tiny.grid(8, 12)), larger)


def test_graph_limits_are_as_before_once_no_compiled_model_is_merged() -> None:
    tiny = next(model for model in TINY_MODELS if model.name == "flux")
    config = tm.ToMA(ratio=0.75, min_tokens=0, tile=(2, 2), skip_blocks=0)
    limits = torch._dynamo.config
    before = limits.recompile_limit, limits.accumulated_recompile_limit
    models = [compiled_by("regional", made(tiny.build)) for _ in range(2)]
    handles = [tm.apply(model, config) for model in models]
    for model in models:
        tiny.call(model, [0], tiny.grid(8, 8))
    assert limits.recompile_limit > before[0]
    handles[0].remove()
    assert limits.recompile_limit > before[0]
    handles[1].remove()
    assert (limits.recompile_limit, limits.accumulated_recompile_limit) == before


def compiled_by(how: str, model: Any) -> Any:
    if how == "regional":
        model.compile_repeated_blocks(backend="eager")
    elif how == "whole, in place":
        model.compile(backend="eager")
    else:
        return torch.compile(model, backend="eager")
    return model
