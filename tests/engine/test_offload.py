"""What full steps record, kept on the host between steps: the same images, and nothing large left on the device."""

from __future__ import annotations

import pytest
import torch
from fake_gpu import CUDA
from test_no_waiting import watched
from tiny_models import TinyModel, made, tiny
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.session import Session, session_of

TIMESTEPS = [1000.0, 990.0, 980.0, 970.0, 960.0, 950.0, 940.0]
MODELS = ["sd15", "flux"]


def config(offload: bool, method: type[MergeConfig] = tm.TileMean) -> MergeConfig:
    correction = tm.FullSteps(every=3, within=None, offload=offload)
    return method(correction=correction, min_tokens=0, skip_blocks=0)


def session_on(model: nn.Module) -> Session:
    session = session_of(model)
    assert session is not None
    return session


def generated(what: TinyModel, model: nn.Module) -> list[Tensor]:
    """Two images, the second with another text."""
    return [what.call(model, [text], what.grid(8, 8), timestep) for text in (0, 1) for timestep in TIMESTEPS]


@pytest.mark.parametrize("method", [tm.TileMean, tm.ToMA])
@pytest.mark.parametrize("name", MODELS)
def test_images_are_the_same_and_it_takes_as_much_memory(name: str, method: type[MergeConfig]) -> None:
    what = tiny(name)
    made_of, kept = [], []
    for offload in (False, True):
        model = made(what.build)
        with tm.merged(model, config(offload, method)) as handle:
            made_of.append(generated(what, model))
            kept.append(session_on(model).state.cached_bytes)
            assert ("kept in the host's memory from step to step" in str(handle.explain())) == offload
    assert all(torch.equal(one, other) for one, other in zip(*made_of, strict=True))
    assert kept[0] == kept[1] > 0


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_it_goes_to_the_host_and_back_without_waiting(
    name: str, offload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = watched(tiny(name), config(offload), monkeypatch)
    memories = session_on(loop.model).state._memories.values()
    kept = [tensor for memory in memories for branch in memory.branches.values() for tensor in branch.tensors]
    assert kept
    assert {tensor.device for tensor in kept} == {torch.device("cpu") if offload else CUDA}
    assert loop.gpu.reads == 2  # the timesteps of each generation


def test_offloaded_memory_compiles_without_a_break() -> None:
    what = tiny("flux")
    model = made(what.build)
    with tm.merged(model, config(offload=True)):
        expected = generated(what, model)
    with tm.merged(model, config(offload=True)):
        model.compile_repeated_blocks(fullgraph=True, backend="eager")
        for one, other in zip(expected, generated(what, model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
