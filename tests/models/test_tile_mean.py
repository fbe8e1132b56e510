"""TileMean on models: the mean of each tile in the order of the grid, with a correction, a mask, and any grid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, operators_on, session_on
from short_runs import FAMILIES, TIMESTEPS, errors, generate
from tiny_models import TinyModel, made, tiny

import tokenmerge as tm
from tokenmerge.errors import ConfigError


@pytest.fixture(autouse=True)
def _full_steps_read_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they are exact. On random weights a subset of keys changes more than on trained ones."""
    monkeypatch.setattr("tokenmerge.engine.resolve.key_distance", lambda *_: 1)


@pytest.mark.parametrize("what", FAMILIES, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_full_steps_bring_tile_means_closer(what: TinyModel, scope: Any) -> None:
    """And the order of the grid is kept, so that nothing is gathered."""
    model = made(what.build)
    before = generate(model, what)
    options: dict[str, Any] = {**SMALL, "tile": 2, "scope": scope}
    with tm.merged(model, tm.TileMean(correction=None, **options)):
        plain = errors(before, generate(model, what))
    with tm.merged(model, tm.TileMean(correction=tm.FullSteps(every=3), **options)):
        corrected = errors(before, generate(model, what))
        merging = [stack for stack in session_on(model).stacks if stack.program.merges]
        for stack in merging:
            operators = stack.operators_of(stack.described.merging[0])
            assert operators is not None
            assert operators.queries is not None
            assert operators.queries.destinations is not None
            assert not any(row.gather for row in stack.program.spans)
            width = stack.program.grid[-1]
            first = torch.arange(width // 2) * 2 + width + 1
            assert operators.queries.destinations[0, : len(first)].tolist() == first.tolist()  # the last of its four
    assert merging
    assert [error == 0 for error in corrected] == [step % 3 == 0 for step in range(len(TIMESTEPS))]
    assert all(error < 0.6 * worst for error, worst in zip(corrected, plain, strict=True))


@pytest.mark.parametrize("keys", ["merged", "sampled", "all"])
def test_a_mask_keeps_its_tokens_and_averages_the_others(keys: Any) -> None:
    what = tiny("pixart")
    model = made(what.build)
    keep = torch.zeros(8, 8)
    keep[:2, :4] = 1  # 8 tokens, and 14 tiles of the others
    with tm.merged(model, tm.TileMean(tile=2, keys=keys, **SMALL), keep=keep):
        for timestep in (1000.0, 990.0):
            what.call(model, (1, 2), what.grid(8, 8), timestep)
        queries = operators_on(model).queries
    assert queries is not None
    assert queries.mass is not None
    tokens = torch.randn(2, 64, 3)
    back = queries.unmerge(queries.merge(tokens))
    white = keep.flatten() == 1
    assert torch.equal(back[:, white], tokens[:, white])
    assert not torch.isclose(back[:, ~white], tokens[:, ~white]).any()
    assert queries.mass[0].tolist() == [4.0] * 14 + [1.0] * 8


@pytest.mark.parametrize("name", ["pixart", "flux", "wan"])
def test_tiles_need_not_divide_the_grid(name: str) -> None:
    what = tiny(name)
    model = made(what.build)
    grid = what.grid(7, 9)
    before = [what.call(model, (1, 2), grid, timestep) for timestep in TIMESTEPS]
    with tm.merged(model, tm.TileMean(tile=2, correction=None, **SMALL)):
        plain = errors(before, [what.call(model, (1, 2), grid, timestep) for timestep in TIMESTEPS])
    with tm.merged(model, tm.TileMean(tile=2, **SMALL)):
        corrected = errors(before, [what.call(model, (1, 2), grid, timestep) for timestep in TIMESTEPS])
    assert corrected[0] == 0
    assert all(error < worst for error, worst in zip(corrected, plain, strict=True))


def test_no_destinations_are_counted_because_none_are_selected() -> None:
    what = tiny("pixart")
    model = made(what.build)
    with tm.merged(model, tm.TileMean(tile=2, correction=tm.FullSteps(every=3), **SMALL)) as handle:
        generate(model, what)
        measured = handle.explain().models[0].measured
    assert measured is not None
    assert (measured.calls, measured.full, measured.selections, measured.weightings) == (7, 3, 0, 0)
    assert str(measured).startswith("7 calls, 3 of them at full steps, ")
    assert "destinations" not in str(measured)


def test_outliers_and_a_mask_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave out one of the two"):
        tm.TileMean(outliers=5).layout((8, 8), 1, (0, 1))
