"""Half precision with massive activations: nothing overflows, and choices and fits are those of float32.

Some models have channels of 1,000 to 10,000 among ordinary ones. Their squares, and sums of a few of them, are beyond
the largest number of float16, which is 65,504.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import tokenmerge as tm
from tokenmerge.config.interfaces import BlockContext, Operator, Operators
from tokenmerge.engine.correction import record_full, unmerge_corrected
from tokenmerge.engine.state import Memory
from tokenmerge.methods.named import METHODS

GRID, CHANNELS = (16, 16), 24
PLACE = BlockContext("block", 1, 4, seed=torch.tensor(3))
CONFIGS = {
    **{name: method.make() for name, method in METHODS.items() if name != "skip-steps"},
    "tile-mean, outliers": tm.TileMean(outliers=8),
    "sampled-keys, outliers": tm.SampledKeys(outliers=8),
    "toma, random": tm.ToMA(selector="random"),
}


def massive(seed: int, dtype: torch.dtype) -> Tensor:
    """(2, N, C): one channel of 10,000, one of 1,000 that is nearly constant, one token of 30,000."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(2, 256, CHANNELS, generator=generator)
    tokens[:, :, 3] *= 1e4
    tokens[:, :, 7] = 1e3 + tokens[:, :, 7]
    tokens[:, 5, 11] = 3e4
    return tokens.clamp(-6e4, 6e4).to(dtype)


def planned(config: tm.MergeConfig, tokens: Tensor) -> Operators:
    layout = config.layout(GRID)
    if layout.regions is not None:
        layout = dataclasses.replace(layout, regions=layout.regions.to(tokens.device))
    return config.plan(tokens, layout, PLACE, None)


def assert_like(half: Tensor, full: Tensor) -> None:
    assert half.isfinite().all()
    largest = full.abs().amax(dim=(0, 1)).clamp(min=1)  # of each channel
    assert ((half.float() - full).abs() / largest).max() < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_no_method_overflows(name: str, dtype: torch.dtype) -> None:
    tokens = massive(0, dtype)
    half, full = planned(CONFIGS[name], tokens), planned(CONFIGS[name], tokens.float())
    pairs: list[tuple[Operator | None, Operator | None]] = [(half.queries, full.queries), (half.keys, full.keys)]
    for one, other in pairs:
        if one is None or other is None:
            continue
        if other.destinations is not None:
            assert one.destinations is not None
            assert torch.equal(one.destinations, other.destinations)
        merged = one.merge(tokens)
        assert merged.dtype == dtype
        assert_like(merged, other.merge(tokens.float()))
        restored = one.unmerge(merged)
        assert restored.isfinite().all()
        if name != "toma-pinv":  # the pseudo-inverse is a difference of large numbers: it amplifies rounding
            assert_like(restored, other.unmerge(merged.float()))


def corrected(dtype: torch.dtype, name: str) -> tuple[Tensor, Tensor]:
    """The weights of two recorded errors, and what they are added to."""
    operator = planned(CONFIGS[name], massive(0, dtype)).queries
    assert operator is not None
    memory = Memory(outlasts_plans=True)
    for step, seed in enumerate((1, 2), start=1):
        memory.begin(0, step, new_plan=False)
        tokens = massive(seed, torch.float16).to(dtype)
        record_full(memory, tokens)
        memory.current.calibrating = True
        unmerge_corrected(operator, operator.merge(tokens), memory)
    memory.begin(0, 3, new_plan=False)
    memory.current.calibrating = False
    now = (0.6 * massive(2, torch.float16) + 0.3 * massive(1, torch.float16)).to(dtype)
    return unmerge_corrected(operator, operator.merge(now), memory), now


@pytest.mark.parametrize("name", ["tile-mean", "toma", "tomesd", "tile-mean, outliers"])
def test_the_correction_neither_overflows_nor_loses_its_weights(name: str) -> None:
    """What was recorded at two full steps is found again in a mixture of both: in its errors too."""
    half, _ = corrected(torch.float16, name)
    full, expected = corrected(torch.float32, name)
    assert_like(half, full)
    assert_like(full, expected)
