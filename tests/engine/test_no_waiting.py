"""No step waits for the device: models of each kind and all methods on a CUDA device that has no values to wait for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import in_turn
from fake_gpu import FakeGpu, HostWaits
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

import tokenmerge as tm
from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.session import session_of
from tokenmerge.errors import ConfigError, NothingMergedError
from tokenmerge.methods.named import METHODS
from tokenmerge.models import family_of, position_ids

# Merging error, new plans and full steps in turn; destinations sampled at random; keys alone; queries alone.
SCHEDULES: dict[str, dict[str, Any]] = {
    "select and weigh": {"select_every": (3, 1), "scope": "site"},
    "calibrate": {"correction": tm.FullSteps(every=3), "select_every": (2, 1)},
    "calibrate, scope stack": {"correction": tm.FullSteps(every=3), "scope": "stack"},
    "random": {"selector": "random", "ratio": 0.5},
    "sampled keys": {"keys": "sampled"},
    "all keys": {"keys": "all"},
}


class Loop:
    """Generations as a pipeline runs them: one list of timesteps, the same text at each step."""

    def __init__(self, tiny: TinyModel, gpu: FakeGpu, config: MergeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = gpu
        self.model = made(tiny.build)
        self.handle = tm.apply(self.model, config)
        tiny.call(self.model, [0, 1], tiny.grid(8, 8))  # how a grid is cut is worked out on the host, once
        for module in ("engine.clock", "engine.follow", "models.position_ids"):
            monkeypatch.setattr(f"tokenmerge.{module}.read_back", gpu.read_back)
        once = position_ids._once  # whose values are read once a generation, for its tensors are the same at all steps
        monkeypatch.setattr(position_ids, "_once", lambda values, *how: once(gpu.real(values), *how))
        gpu.model(self.model)
        self.times = (0.1, 0.8) if family_of(self.model).timestep_rises else (0.9, 0.2)
        self.inputs = gpu.on_device(tiny.inputs([0, 1], tiny.grid(8, 8)))

    def generate(self, watch: bool, steps: int) -> None:
        self.run(watch, self.gpu.readable(torch.linspace(*self.times, steps)))

    def run(self, watch: bool, timesteps: Tensor) -> None:
        with self.gpu.running(watch):
            for timestep in timesteps.unbind():
                name = family_of(self.model).timestep
                self.model(**{**self.inputs, name: timestep.expand(self.inputs[name].shape)})


def watched(tiny: TinyModel, config: MergeConfig, monkeypatch: pytest.MonkeyPatch, steps: int = 5) -> Loop:
    loop = Loop(tiny, FakeGpu(), config, monkeypatch)
    loop.generate(watch=False, steps=2)  # the first makes what is kept for this size: tables of indices, on the device
    loop.generate(watch=True, steps=steps)
    return loop


# One of each way that families differ in: the grid, text in the sequence, rotary embeddings, frames.
DIFFERENT = [tiny for tiny in TINY_MODELS if tiny.name in ("sd15", "flux", "sd3", "qwen-image", "wan")]


@in_turn("tiny, schedule", list(SCHEDULES), DIFFERENT)
def test_no_step_of_toma_waits_for_the_device(tiny: TinyModel, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"ratio": 0.75, "tile": (4, 4), **SCHEDULES[schedule]}
    if options.get("scope", "site") not in tiny.scopes or ("keys" in options and not tiny.merges_keys):
        pytest.skip("the model does not allow it")
    loop = watched(tiny, tm.ToMA(min_tokens=0, skip_blocks=0, **options), monkeypatch)
    session = session_of(loop.model)
    assert session is not None
    assert session.merged_calls
    assert session.full_calls or not options.get("correction")
    assert loop.gpu.reads == 2  # the timesteps of each generation, all at once


# Those of every method that a family can differ in.
EVERYWHERE = {
    "tile mean": tm.TileMean(tile=2, correction=tm.FullSteps(every=3), min_tokens=0, skip_blocks=0),
    "ToMA": tm.ToMA(ratio=0.5, tile=(2, 2), min_tokens=0, skip_blocks=0, select_every=(3, 1)),
}


# Those whose own code waits at every call, merged or not, and for what.
WAIT_THEMSELVES = {
    "lumina2": "the length of each text",
    "glm-image": "which prior tokens are dropped: an index of booleans",
    "omnigen": "the largest position",
    "hidream": "how many tokens each expert has",
    "nucleus": "how many tokens each expert has",
    "qwen-image-2.1": "how often each position is repeated",
    "mochi": "which tokens of the text are padding",
    "hunyuan-video-1.5": "whether an image is given",
}


@in_turn("tiny, method", list(EVERYWHERE), [tiny for tiny in TINY_MODELS if tiny.name not in WAIT_THEMSELVES])
def test_no_step_of_any_family_waits_for_the_device(
    tiny: TinyModel, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = watched(tiny, EVERYWHERE[method], monkeypatch, steps=4)
    session = session_of(loop.model)
    assert session is not None
    assert session.merged_calls
    assert loop.gpu.reads == 2


@pytest.mark.parametrize("tiny", [tiny for tiny in TINY_MODELS if tiny.name in WAIT_THEMSELVES], ids=str)
def test_models_that_wait_themselves_do_so_without_merging(tiny: TinyModel) -> None:
    gpu = FakeGpu()
    model = gpu.model(made(tiny.build))
    inputs = gpu.on_device(tiny.inputs([0, 1], tiny.grid(8, 8)))
    # What needs a value raises; an index of booleans asks for the device, which is not there.
    raised = DataDependentOutputException, DynamicOutputShapeException, RuntimeError
    reading = "_local_scalar_dense|bincount|repeat_interleave|not linked with support for cuda"
    with pytest.raises(raised, match=reading), gpu.running(watch=False):
        model(**inputs)


@pytest.mark.parametrize(
    "config",
    [
        tm.SkipSteps(step_speedup=2),
        tm.SampledKeys(outliers=2, step_speedup=2, min_tokens=0, skip_blocks=0),
        tm.TileMean(step_speedup=2, min_tokens=0, skip_blocks=0),
    ],
    ids=lambda config: type(config).__name__,
)
@pytest.mark.parametrize("name", ["sd15", "flux"])
def test_skipped_steps_and_those_that_make_them_good_do_not_wait(
    name: str, config: MergeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = watched(tiny(name), config, monkeypatch, steps=16)
    session = session_of(loop.model)
    assert session is not None
    assert session.skipped_calls
    assert loop.gpu.reads == 2


@pytest.mark.parametrize("method", METHODS)
def test_no_step_of_a_named_method_waits_for_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(METHODS[method].make(), min_tokens=0, skip_blocks=0)
    try:
        loop = watched(tiny("pixart"), config, monkeypatch)
    except (ConfigError, NothingMergedError):
        pytest.skip("the method does not fit the model")
    assert loop.gpu.reads == 2


def test_a_timestep_made_on_the_device_at_each_step_is_waited_for() -> None:
    """What a loop without a list of timesteps costs; and the test above can fail."""
    monkeypatch = pytest.MonkeyPatch()
    loop = Loop(tiny("sd15"), FakeGpu(), tm.ToMA(min_tokens=0), monkeypatch)
    with pytest.raises(HostWaits, match="values are read"):
        loop.run(watch=True, timesteps=loop.gpu.tensor(torch.ones(1)))
    monkeypatch.undo()
