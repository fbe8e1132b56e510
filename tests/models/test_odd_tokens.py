"""A handful of tokens carry what everything attends to (attention sinks): outliers keep them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokenmerge as tm
from tokenmerge.models import FAMILIES
from tokenmerge.models.base import Call, Family, Part, Stack, blocks_of, new_like, patch_grid, signature_of
from tokenmerge.presets import NAMES, OUTLIERS

WIDTH, SINKS, MANY = 16, (5, 70, 133, 250), range(3, 256, 6)


class SinkAttention(nn.Module):
    """Every query asks for the first channel, which only the sinks have much of; others answer next to nothing."""

    def forward(self, x: Tensor, encoder_hidden_states: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        keys = x if encoder_hidden_states is None else encoder_hidden_states
        asked = torch.zeros_like(x)
        asked[..., 0] = 4.0
        values = keys.roll(1, dims=-1)
        heads = asked[:, None], keys[:, None], values[:, None]
        return functional.scaled_dot_product_attention(*heads, attn_mask=bias)[:, 0]


class SinkBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = SinkAttention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + 0.1 * self.mlp(x)


class SinkModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SinkBlock() for _ in range(2))

    def forward(self, noisy: Tensor, t: Tensor) -> Tensor:
        tokens = noisy.flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens)
        return (1 + t) * tokens.transpose(1, 2).view(noisy.shape)


class SinkFamily(Family):
    name = "Sinks"
    class_name = "SinkModel"
    latent, timestep, conditions = "noisy", "t", ()

    def stacks(self, model: nn.Module) -> list[Stack]:
        parts = (Part(("self",), "attn", mask="4d", mask_argument="bias", own_keys=True), Part(("mlp",), "mlp"))
        blocks = blocks_of(model, "layers", parts, argument="x")
        return [Stack("layers", "layers", model, lambda args, kwargs: patch_grid(1, args, kwargs, "noisy"), blocks)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return Call(float(kwargs["t"][0]), signature_of(kwargs["noisy"]))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        new = new_like(model)
        return {"noisy": torch.randn(batch, WIDTH, size[0] // 8, size[1] // 8, **new), "t": torch.ones(batch, **new)}


@pytest.fixture(autouse=True)
def family() -> Iterator[None]:
    known = list(FAMILIES)
    tm.register_family(SinkFamily())
    yield
    FAMILIES[:] = known


def noisy_with_sinks(places: Sequence[int] = SINKS) -> Tensor:
    torch.manual_seed(0)
    tokens = 0.1 * torch.randn(1, 256, WIDTH) + torch.linspace(0, 1, 256).view(1, 256, 1)
    for number, place in enumerate(places):
        tokens[0, place, 0] = 8.0
        tokens[0, place, 1 + number % (WIDTH - 1)] = 5.0
    return tokens.transpose(1, 2).reshape(1, WIDTH, 16, 16)


def error(config: tm.MergeConfig | str, steps: int = 1, places: Sequence[int] = SINKS) -> float:
    """How far the outputs of a loop are from those of the unmerged model, as a share of their length."""
    torch.manual_seed(0)
    model, noisy = SinkModel().eval(), noisy_with_sinks(places)
    times = [torch.tensor([1 - number / steps]) for number in range(steps)]
    with torch.no_grad():
        exact = torch.stack([model(noisy=noisy, t=time) for time in times])
        with tm.merged(model, config):
            merged = torch.stack([model(noisy=noisy, t=time) for time in times])
    return float((merged - exact).norm() / exact.norm())


LOSING = [
    lambda outliers: tm.TileMean(correction=None, min_tokens=0, outliers=outliers),
    lambda outliers: tm.TileMean(correction=None, scope="stack", min_tokens=0, outliers=outliers),
    lambda outliers: tm.SampledKeys(min_tokens=0, outliers=outliers),
]


@pytest.mark.parametrize("make", LOSING)
def test_outliers_keep_what_everything_attends_to(make: Any) -> None:
    lost, kept = error(make(0)), error(make(8))
    assert kept < 0.1
    assert kept < lost / 3


def test_whole_keys_keep_it_too() -> None:
    assert error(tm.TileMean(correction=None, outliers=0, keys="all", scope="site", min_tokens=0)) < 0.1


@pytest.mark.parametrize("steps", [1, 4, 12])
def test_keys_beside_skipped_steps_keep_it(steps: int) -> None:
    assert error(tm.SampledKeys(outliers=8, min_tokens=0, step_speedup=2.0), steps) < 0.03


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [2, 4, 12])
def test_no_preset_loses_it(name: str, steps: int) -> None:
    assert error(name, steps) < 0.1


@pytest.mark.parametrize("steps", [1, 4])
def test_presets_keep_dozens_of_them(steps: int) -> None:
    presets, few = (tm.SampledKeys(outliers=count, step_speedup=2.0) for count in (OUTLIERS, 8))
    assert error(presets, steps, MANY) < 0.03
    assert error(presets, steps, MANY) < error(few, steps, MANY) / 3
    assert error(presets, steps, MANY) < error(tm.ToMA(ratio=0.5), steps, MANY)
