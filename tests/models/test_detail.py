"""Detail from whole steps: which steps run whole, what merged ones add, and that it brings them closer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, session_on
from short_runs import FAMILIES, TIMESTEPS, errors, generate
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor, nn
from torch._dynamo.utils import counters

import tokenmerge as tm
from tokenmerge.errors import ConfigError

TILES: dict[str, Any] = {"ratio": 0.5, "tile": (4, 4), **SMALL}
GLOBAL: dict[str, Any] = {"ratio": 0.5, "region": "global", "share": "model", **SMALL}


@pytest.mark.parametrize("what", FAMILIES, ids=str)
@pytest.mark.parametrize("options", [*({"scope": scope} for scope in SCOPES), {"kv_ratio": 0}], ids=str)
def test_whole_steps_are_untouched_and_the_others_come_closer(what: TinyModel, options: dict[str, Any]) -> None:
    model = made(what.build)
    before = generate(model, what)
    with tm.merged(model, tm.ToMA(detail_every=0, **options, **TILES)):
        plain = errors(before, generate(model, what))
    with tm.merged(model, tm.ToMA(detail_every=3, thin_keys=False, **options, **TILES)):
        detailed = errors(before, generate(model, what))
    assert [error == 0 for error in detailed] == [step % 3 == 1 for step in range(len(TIMESTEPS))]
    assert detailed[0] == plain[0]  # there is nothing to remember yet
    # The steps are so near each other that their detail is nearly the same.
    for step in (2, 3, 5, 6):
        assert detailed[step] < plain[step] * 0.6


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ({}, [1, 5]),
        ({"detail_every": 2}, [1, 3, 5]),
        ({"detail_every": 0}, []),
        ({"merge_every": 3}, [1, 2, 4, 5]),
        ({"ratio": 0, "kv_ratio": 0.5}, []),
        ({"ratio": [0, 0.5], "kv_ratio": 0.25}, [1, 5]),
        ({"detail_within": 0.03}, [1, 4]),  # each of these steps takes a hundredth of the noise
        ({"detail_within": 0.01}, [1, 3, 5]),  # never two in a row
        ({"detail_every": 2, "detail_within": 0.5}, [1, 3, 5]),  # whichever is sooner
    ],
)
def test_which_steps_run_whole(options: dict[str, Any], whole: list[int]) -> None:
    what = tiny("sd15")
    model = made(what.build)
    before = generate(model, what)
    config = tm.ToMA(**{**TILES, "thin_keys": False, **options})
    with tm.merged(model, config):
        error = errors(before, generate(model, what))
    assert [step for step, each in enumerate(error) if each == 0] == whole


def fitted(now: Tensor, then: list[Tensor]) -> list[float]:
    """Shares of merged tokens (M, C) at whole steps, the last first, that make those of now, by least squares.

    The others' shares, and what they change of the last one's, are held down by a hundredth of what they stand for.
    """
    columns = torch.stack([(each - each.mean(dim=0)).flatten().double() for each in then], dim=1)
    wanted = (now - now.mean(dim=0)).flatten().double()
    first = columns[:, 0] @ wanted / columns[:, 0].square().sum()
    if len(then) == 1:
        return [float(first)]
    held = torch.diag(columns.square().sum(dim=0).sqrt() * 0.1)
    rest = torch.cat([wanted - first * columns[:, 0], torch.zeros(len(then))])
    more = torch.linalg.lstsq(torch.cat([columns, held]), rest.unsqueeze(1)).solution.squeeze(1)
    return [float(first + more[0]), *more[1:].tolist()]


SEPARATE_INSIDE = [model for model in TINY_MODELS if model.merges_keys and model.separate_keys and not model.own_keys]


@pytest.mark.parametrize("what", SEPARATE_INSIDE, ids=str)
def test_where_queries_alone_are_left_out_nothing_is_lost_as_long_as_nothing_changes(what: TinyModel) -> None:
    """The queries that are asked get the answer of the whole step, and the others what set them apart in it."""
    model = made(what.build)
    grid = what.grid(8, 8)
    timesteps = (1.0, 0.99, 0.98999)
    before = [what.call(model, [1, 2], grid, timestep) for timestep in timesteps]
    with tm.merged(model, tm.ToMA(kv_ratio=0, parts=("self",), detail_every=2, **TILES)):
        after = errors(before, [what.call(model, [1, 2], grid, timestep) for timestep in timesteps])
    assert after[0] > 0
    assert after[2] < after[0] * 1e-3


def test_detail_beside_an_ip_adapter_of_sd3_is_that_of_its_attention_alone() -> None:
    """Its adapter adds attention of its own, over all tokens, inside the same module: no detail of that was lost."""
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
    pictures = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))

    def call(timestep: float) -> Tensor:
        inputs["timestep"] = torch.full_like(inputs["timestep"], timestep)
        extras = {"joint_attention_kwargs": {"ip_adapter_image_embeds": pictures}}
        return model(**inputs, **extras, return_dict=False)[0]

    timesteps = (1.0, 0.99, 0.98999)
    before = [call(timestep) for timestep in timesteps]
    pictures = pictures.flip(0)
    assert not torch.allclose(before[0], call(1.0), atol=1e-4), "the adapter is there to be seen"
    pictures = pictures.flip(0)
    with tm.merged(model, tm.ToMA(kv_ratio=0, parts=("self",), detail_every=2, **TILES)):
        after = errors(before, [call(timestep) for timestep in timesteps])
    assert after[0] > 0
    assert after[2] < after[0] * 1e-3


def test_every_method_that_merges_queries_takes_it() -> None:
    what = tiny("sd15")
    model = made(what.build)
    before = generate(model, what)
    for method in (tm.ToMeSD, tm.ToFu):
        with tm.merged(model, method(min_tokens=4, parts=("self", "mlp"))):
            plain = errors(before, generate(model, what))
        with tm.merged(model, method(min_tokens=4, parts=("self", "mlp"), detail_every=3, thin_keys=False)):
            detailed = errors(before, generate(model, what))
        assert 0 < detailed[2] < plain[2]


def test_detail_is_forgotten_with_its_picture() -> None:
    what = tiny("pixart")
    model = made(what.build)
    config = tm.ToMA(detail_every=4, **{**TILES, "ratio": 0.875})
    with tm.merged(model, config):
        alone = generate(model, what)
    with tm.merged(model, config) as handle:
        generate(model, what, samples=(7,))
        again = generate(model, what)
        memories = list(session_on(model).state._memories.values())
        assert any(branch.calibrations for memory in memories for branch in memory.branches)
        handle.remove()
    assert all(torch.equal(one, other) for one, other in zip(alone, again, strict=True))
    assert not any(branch.calibrations for memory in memories for branch in memory.branches)


def test_guidance_branches_have_detail_of_their_own() -> None:
    what = tiny("pixart")
    model = made(what.build)
    grid = what.grid(8, 8)
    config = tm.ToMA(detail_every=3, **TILES)
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
    config = tm.ToMA(detail_every=3, **{**TILES, "ratio": ratio})
    with tm.merged(model, config):
        eager = generate(model, what)
    torch.compiler.reset()
    counters.clear()
    model.compile(backend="eager")
    with tm.merged(model, config):
        compiled = generate(model, what)
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"detail_every": 1}, "every step would run whole"),
        ({"detail_every": -1}, "whole number of at least 0"),
        ({"detail_every": 2.5}, "whole number"),
        ({"detail_every": 3, "merge_every": 2}, "set only one of them"),
        ({"detail_every": 3, "ratio": 0, "kv_ratio": 0.5}, "no detail is lost"),
        ({"detail_within": 0}, "a number above 0 and up to 1"),
        ({"detail_within": 1.5}, "a number above 0 and up to 1"),
        ({"detail_within": "often"}, "a number above 0 and up to 1"),
        ({"detail_within": 0.3, "detail_every": 0}, "no step runs whole"),
        ({"detail_within": 0.3, "merge_every": 2}, "no step runs whole"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tm.ToMA(**options)


def test_todo_loses_no_detail() -> None:
    with pytest.raises(ConfigError, match="no detail is lost"):
        tm.ToDo(detail_every=3)
