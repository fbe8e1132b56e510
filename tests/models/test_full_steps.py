"""The correction: which steps run full, what merged ones add, and that it brings them closer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, in_turn, session_on
from short_runs import FAMILIES, TIMESTEPS, errors, generate
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor, nn
from torch._dynamo.utils import counters

import tokenmerge as tm

TILES: dict[str, Any] = {"ratio": 0.5, "tile": (4, 4), **SMALL}


@pytest.fixture(autouse=True)
def _full_steps_read_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they are exact. On random weights a subset of keys changes more than on trained ones."""
    monkeypatch.setattr("tokenmerge.engine.resolve.key_distance", lambda *_: 1)


@in_turn("what, options", [*({"scope": scope} for scope in SCOPES), {"keys": "all"}], FAMILIES)
def test_full_steps_are_untouched_and_the_others_come_closer(what: TinyModel, options: dict[str, Any]) -> None:
    model = made(what.build)
    before = generate(model, what)
    with tm.merged(model, tm.ToMA(**options, **TILES)):
        plain = errors(before, generate(model, what))
    with tm.merged(model, tm.ToMA(correction=tm.FullSteps(every=3, within=None), **options, **TILES)):
        detailed = errors(before, generate(model, what))
    assert [error == 0 for error in detailed] == [step % 3 == 0 for step in range(len(TIMESTEPS))]
    # The steps are so near each other that their merging error is nearly the same.
    for step in (1, 2, 4, 5):
        assert detailed[step] < plain[step] * 0.6


@pytest.mark.parametrize(
    ("config", "full"),
    [
        (tm.ToMA(correction=tm.FullSteps(every=4)), [0, 4]),
        (tm.ToMA(correction=tm.FullSteps(every=2)), [0, 2, 4, 6]),
        (tm.ToMA(), []),
        (tm.ToMA.released(), [1, 2, 4, 5]),
        (tm.SampledKeys(), []),
        (tm.ToMA(ratio=[0, 0.5], correction=tm.FullSteps(every=4)), [0, 1, 2, 3, 4, 5, 6]),  # 0 until half of the noise
        (
            tm.ToMA(correction=tm.FullSteps(within=0.03)),
            [0, 3, 6],
        ),  # each of these steps takes a hundredth of the noise
        (tm.ToMA(correction=tm.FullSteps(within=0.01)), [0, 2, 4, 6]),  # never two in a row
    ],
    ids=repr,
)
def test_which_steps_run_full(config: tm.MergeConfig, full: list[int]) -> None:
    what = tiny("flux")
    model = made(what.build)
    before = generate(model, what)
    with tm.merged(model, dataclasses.replace(config, **SMALL)):
        error = errors(before, generate(model, what))
    assert [step for step, each in enumerate(error) if each == 0] == full


SEPARATE_INSIDE = [model for model in TINY_MODELS if model.merges_keys and model.separate_keys and not model.own_keys]


@pytest.mark.parametrize("what", SEPARATE_INSIDE, ids=str)
def test_with_all_keys_nothing_is_lost_as_long_as_nothing_changes(what: TinyModel) -> None:
    """The queries that are asked get the answer of the full step, and the others what set them apart in it."""
    model = made(what.build)
    grid = what.grid(8, 8)
    timesteps = (1.0, 0.99999, 0.99)
    before = [what.call(model, [1, 2], grid, timestep) for timestep in timesteps]
    with tm.merged(model, tm.ToMA(keys="all", parts=("self",), correction=tm.FullSteps(every=2, within=None), **TILES)):
        after = errors(before, [what.call(model, [1, 2], grid, timestep) for timestep in timesteps])
    with tm.merged(model, tm.ToMA(keys="all", parts=("self",), **TILES)):
        plain = errors(before, [what.call(model, [1, 2], grid, timestep) for timestep in timesteps])
    assert after[0] == 0
    assert after[1] < plain[1] * 1e-3


def test_the_correction_beside_an_ip_adapter_of_sd3_is_that_of_its_attention_alone() -> None:
    """Its adapter adds a second attention, over all tokens, inside the same module: no detail of that was lost."""
    from diffusers.models.attention_processor import SD3IPAdapterJointAttnProcessor2_0

    class Embeddings(nn.Module):
        def forward(self, images: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
            return images, torch.ones(images.shape[0], 16)

    what = tiny("sd3")
    model: Any = what.build()
    model.image_proj = Embeddings()
    for block in model.transformer_blocks:
        attention = block.attn
        width = attention.to_q.out_features
        adapter = SD3IPAdapterJointAttnProcessor2_0(width, 8, width // attention.heads, 16)
        attention.set_processor(adapter)
    model.eval().requires_grad_(False)
    inputs = what.inputs([1, 2], what.grid(8, 8))
    embeddings = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))

    def call(timestep: float) -> Tensor:
        inputs["timestep"] = torch.full_like(inputs["timestep"], timestep)
        extras = {"joint_attention_kwargs": {"ip_adapter_image_embeds": embeddings}}
        return model(**inputs, **extras, return_dict=False)[0]

    timesteps = (1.0, 0.99999, 0.99)
    before = [call(timestep) for timestep in timesteps]
    embeddings = embeddings.flip(0)
    assert not torch.allclose(before[0], call(1.0), atol=1e-4), "the adapter is there to be seen"
    embeddings = embeddings.flip(0)
    with tm.merged(model, tm.ToMA(keys="all", parts=("self",), correction=tm.FullSteps(every=2, within=None), **TILES)):
        after = errors(before, [call(timestep) for timestep in timesteps])
    with tm.merged(model, tm.ToMA(keys="all", parts=("self",), **TILES)):
        plain = errors(before, [call(timestep) for timestep in timesteps])
    assert after[0] == 0
    assert after[1] < plain[1] * 1e-3


def test_every_method_that_merges_queries_takes_it() -> None:
    what = tiny("sd15")
    model = made(what.build)
    before = generate(model, what)
    for method in (tm.ToMeSD, tm.ToFu):
        options: dict[str, Any] = {"min_tokens": 4, "parts": ("self", "mlp")}
        with tm.merged(model, method(**options)):
            plain = errors(before, generate(model, what))
        with tm.merged(model, method(correction=tm.FullSteps(every=3), **options)):
            detailed = errors(before, generate(model, what))
        assert 0 < detailed[2] < plain[2]


def test_errors_are_forgotten_with_their_image() -> None:
    what = tiny("pixart")
    model = made(what.build)
    config = tm.ToMA(correction=tm.FullSteps(every=4, within=None), **{**TILES, "ratio": 0.875})
    with tm.merged(model, config):
        alone = generate(model, what)
    with tm.merged(model, config) as handle:
        generate(model, what, samples=(7,))
        again = generate(model, what)
        memories = list(session_on(model).state._memories.values())
        assert any(branch.recorded for memory in memories for branch in memory.branches.values())
        handle.remove()
    assert all(torch.equal(one, other) for one, other in zip(alone, again, strict=True))
    assert not any(branch.tensors for memory in memories for branch in memory.branches.values())


def test_guidance_branches_have_errors_of_their_own() -> None:
    what = tiny("pixart")
    model = made(what.build)
    grid = what.grid(8, 8)
    config = tm.ToMA(correction=tm.FullSteps(every=3, within=None), **TILES)
    inputs = [what.inputs([sample], grid) for sample in (1, 2)]

    def calls(branches: list[dict[str, Any]]) -> list[list[Tensor]]:
        steps = []
        for timestep in TIMESTEPS:
            now = torch.tensor([timestep])
            steps.append([model(**{**given, "timestep": now}, return_dict=False)[0] for given in branches])
        return steps

    with torch.no_grad(), tm.merged(model, config):
        both = calls(inputs)
    for branch, given in enumerate(inputs):
        with torch.no_grad(), tm.merged(model, config):
            alone = calls([given])
        for together, single in zip(both, alone, strict=True):
            torch.testing.assert_close(together[branch], single[0])


@pytest.mark.parametrize("ratio", [0.5, 0.875, 0.9375])
def test_a_compiled_model_keeps_it(ratio: float) -> None:
    what = tiny("sd15")
    model = made(what.build)
    config = tm.ToMA(correction=tm.FullSteps(every=3, within=None), **{**TILES, "ratio": ratio})
    with tm.merged(model, config):
        eager = generate(model, what)
    torch.compiler.reset()
    counters.clear()
    model.compile(backend="eager")
    with tm.merged(model, config):
        compiled = generate(model, what)
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
