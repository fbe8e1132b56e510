"""Models that strangers wrote, attached by what docs/extending.md describes and nothing else."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from checks import SCOPES, SMALL, TILES, attention_lengths, close, key_lengths
from foreign_models import ConsistencyUNet, FlowDiT, SwallowingAttention
from identity import Identity
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.engine.clock import Clock
from tokenmerge.errors import ConfigError, MergeRuntimeError, NothingMergedWarning, UnsupportedModelError
from tokenmerge.models import FAMILIES
from tokenmerge.models.base import (
    Family,
    Part,
    Rotary,
    Stack,
    blocks_of,
    cos_sin_at,
    new_like,
    patch_grid,
)

PARTS = (Part(("self",), "attn", mask="4d", mask_argument="bias"), Part(("mlp",), "mlp"))


class FlowFamily(Family):
    name = "Flow DiT"
    class_name = "FlowDiT"
    latent, timestep, conditions = "noisy", "t", ("y",)
    parts: tuple[Part, ...] = PARTS
    timestep_rises = True
    rotary: Rotary | None = Rotary(("cos", "sin"), cos_sin_at)
    argument, patch, output = "x", 2, None
    blocks, grid_argument = "layers", "noisy"

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, self.blocks, self.parts, self.output, self.rotary, argument=self.argument)
        return [Stack("layers", "layers", model, partial(patch_grid, self.patch, name=self.grid_argument), blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        new = new_like(model)
        labels = torch.zeros(batch, dtype=torch.long, device=new["device"])
        noisy = torch.randn(batch, 4, size[0] // 8, size[1] // 8, **new)
        return {"noisy": noisy, "t": torch.full((batch,), 0.5, **new), "y": labels}


class ConsistencyFamily(Family):
    name = "Consistency UNet"
    class_name = "ConsistencyUNet"
    latent, timestep, conditions = "x", "sigma", ()
    parts: tuple[Part, ...] = (Part(("self",), "", mask="inside"),)
    channels_first = True

    def stacks(self, model: nn.Module) -> list[Stack]:
        def stack(name: str, downsample: int) -> Stack:
            blocks = blocks_of(model, name, self.parts, channels_first=self.channels_first)
            return Stack(name, name, model, partial(patch_grid, downsample, name="x"), blocks, downsample=downsample)

        return [stack("top", 1), stack("bottom", 2)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        return {"x": torch.randn(batch, 3, *size, **new_like(model)), "sigma": 0.5}


@pytest.fixture(autouse=True)
def families() -> Iterator[None]:
    known = list(FAMILIES)
    tm.register_family(FlowFamily())
    tm.register_family(ConsistencyFamily())
    yield
    FAMILIES[:] = known


def seeded(build: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = build().eval().requires_grad_(False)
    return model


def flow_inputs(batch: int = 2, time: float = 0.5) -> dict[str, Tensor]:
    noisy = torch.randn(batch, 4, 16, 24, generator=torch.Generator().manual_seed(0))
    return {"noisy": noisy, "t": torch.full((batch,), time), "y": torch.arange(batch)}


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scope", SCOPES)
def test_two_rotary_arguments_are_moved_together(scope: Any) -> None:
    model, inputs = seeded(FlowDiT), flow_inputs()
    before = model(**inputs)
    with tm.merged(model, Identity(scope=scope)):
        close(model(**inputs), before)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)) as handle:
        after = model(**inputs)  # the first call also measures whether blocks add to their input
        handle.reset()
        with key_lengths() as keys:
            assert torch.equal(model(**inputs), after)
    assert set(keys) == {8 * 12 // 2}
    assert (after - before).abs().max() > 1e-3
    assert torch.equal(model(**inputs), before)


def test_rows_with_a_batch_axis_let_each_sample_keep_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowFamily, "rotary", Rotary(("cos", "sin"), cos_sin_at, per_sample=True))
    model = seeded(lambda: FlowDiT(batched_rows=True))
    inputs = flow_inputs()
    with tm.merged(model, TILES):
        together = model(**inputs)
        alone = [model(**{name: value[[sample]] for name, value in inputs.items()}) for sample in (0, 1)]
    close(together, torch.cat(alone))


def test_rows_without_a_batch_axis_are_refused_for_plans_of_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowFamily, "rotary", Rotary(("cos", "sin"), cos_sin_at, per_sample=True))
    model = seeded(FlowDiT)
    with tm.merged(model, TILES), pytest.raises(MergeRuntimeError, match=r"\(96, 4\) has no batch axis.*per_sample"):
        model(**flow_inputs())


def test_the_mask_reaches_an_argument_of_another_name() -> None:
    model, inputs = seeded(FlowDiT), flow_inputs()
    outputs = []
    for proportional in (True, False):
        with tm.merged(model, dataclasses.replace(TILES, proportional=proportional)):
            outputs.append(model(**inputs))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(("self",), "attn", mask="4d"), "no argument 'attention_mask'.*x, cos, sin, bias.*mask_argument"),
        (Part(("self",), "attn", own_keys=True), "no argument 'encoder_hidden_states' for separate keys"),
        (Part(("self",), "attention"), "has no module 'attention': it has norm1, norm2, attn, mlp"),
        (Part(("itself",), "attn"), "kinds are some of"),
    ],
)
def test_a_family_that_does_not_describe_its_model_is_refused(
    part: Part, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlowFamily, "parts", (part,))
    with pytest.raises(ConfigError, match=f"does not describe this FlowDiT.*{message}"):
        tm.apply(seeded(FlowDiT), TILES)


def test_an_attention_that_would_swallow_the_mask_is_refused() -> None:
    model = seeded(lambda: FlowDiT(SwallowingAttention))
    with pytest.raises(ConfigError, match=r"layers.0.attn takes no argument 'bias'.*mask='inside'"):
        tm.apply(model, TILES)


def test_conditions_tell_guidance_branches_apart() -> None:
    model, inputs = seeded(FlowDiT), flow_inputs(1)
    other = {**inputs, "y": torch.tensor([7])}
    with tm.merged(model, TILES):
        alone = model(**other)
    with tm.merged(model, TILES):
        model(**inputs)
        assert torch.equal(model(**other), alone)  # the second branch has its own plan


def test_time_that_rises_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(FlowDiT)
    with tm.merged(model, TILES), warnings.catch_warnings():
        warnings.simplefilter("error")
        for time in (0.0, 0.2, 0.4, 0.6, 0.8):
            model(**flow_inputs(1, time))
    monkeypatch.setattr(FlowFamily, "timestep_rises", False)
    with tm.merged(model, TILES):
        for time in (0.0, 0.2, 0.4, 0.6):
            model(**flow_inputs(1, time))
        with pytest.warns(NothingMergedWarning, match="timestep rose.*1 - time"):
            model(**flow_inputs(1, 0.8))


def test_a_timestep_may_have_any_unit() -> None:
    model = seeded(ConsistencyUNet)
    full = []
    for unit in (1.0, 1000.0):
        config = tm.TileMean(tile=2, correction=tm.FullSteps(every=6, within=0.35), min_tokens=0)
        with tm.merged(model, config) as handle:
            for left in (1.0, 0.9, 0.5, 0.45, 0.4, 0.1):
                model(image(1), unit * left)
            measured = handle.explain().models[0].measured
        assert measured is not None
        full.append(measured.full)
    assert full == [3, 3]  # at 1.0, 0.5 and 0.1: a step at which 0.35 of the noise is gone since the last one


@pytest.mark.parametrize("time", [-0.25, float("nan"), float("inf")])
def test_a_timestep_that_is_no_amount_of_noise_is_refused(time: float) -> None:
    with pytest.raises(MergeRuntimeError, match="how much noise is left"):
        Clock().read(time)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_block_that_is_attention_and_takes_images(scope: Any) -> None:
    model, noisy = seeded(ConsistencyUNet), image()
    before = model(noisy, 0.5)
    for tiled in (True, False):
        with tm.merged(model, Identity(scope=scope, tiled=tiled)):
            close(model(noisy, 0.5), before)
    with tm.merged(model, dataclasses.replace(TILES, scope=scope)) as handle:
        after = model(noisy, 0.5)
        handle.reset()
        with attention_lengths() as lengths:
            assert torch.equal(model(noisy, 0.5), after)
    assert lengths == [(128, 128), (32, 32)]
    assert after.shape == before.shape
    assert (after - before).abs().max() > 1e-4
    assert torch.equal(model(noisy, 0.5), before)


def test_keys_alone_are_left_out_of_a_block_that_takes_images() -> None:
    model, noisy = seeded(ConsistencyUNet), image()
    config = tm.ToDo(ratio=0.75, coarser_ratios=(0.75,), **SMALL)
    with tm.merged(model, config), attention_lengths() as lengths:
        model(noisy, 0.5)
    assert lengths == [(256, 64), (64, 16)]


def test_blocks_are_a_list_a_dictionary_or_one_module() -> None:
    part = Part(("mlp",), "")
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "several": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    assert [(block.name, block.parts) for block in blocks_of(model, "one", part)] == [("one", (part,))]
    assert [block.name for block in blocks_of(model, "several", (part,))] == ["several.0", "several.1"]
    named = nn.Sequential(model)
    assert [block.module for block in blocks_of(named, "0", part)] == list(model.values())
    with pytest.raises(ConfigError, match="ModuleDict has no module 'two': it has one, several"):
        blocks_of(model, "two", part)


def test_a_grid_that_is_too_large_names_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowFamily, "patch", 1)
    model = seeded(FlowDiT)
    with tm.merged(model, TILES), pytest.raises(MergeRuntimeError, match=r"96 of the 384 tokens.*check_family"):
        model(**flow_inputs())


def test_a_block_of_another_form_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsistencyFamily, "channels_first", False)
    model = seeded(ConsistencyUNet)
    with tm.merged(model, TILES), pytest.raises(MergeRuntimeError, match=r"top has tokens of shape.*channels_first"):
        model(image(), 0.5)


def test_presets_go_by_what_attention_can_be_given_and_by_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, unet = seeded(FlowDiT), seeded(ConsistencyUNet)
    assert tm.preset("quality", unet) == tm.SampledKeys(outliers=64, step_speedup=1.5)
    assert tm.preset("quality", flow) == tm.SkipSteps(step_speedup=1.5)
    without_weights = (Part(("self",), ""),)
    monkeypatch.setattr(ConsistencyFamily, "parts", without_weights)
    assert tm.preset("quality", unet) == tm.SkipSteps(step_speedup=1.5)
    monkeypatch.setattr(FlowFamily, "parts", (Part(("self",), "attn"),))
    assert tm.preset("quality", flow) == tm.SkipSteps(step_speedup=1.5)


def test_an_unknown_class_names_the_nearest_family_and_the_recipe() -> None:
    kind = type("FlowDiTv2", (nn.Module,), {})
    with pytest.raises(UnsupportedModelError, match=r"nearest that it knows is Flow DiT \(FlowDiT\).*extending.md"):
        tm.apply(kind(), TILES)
    for name, nearest in (("MyUNet", "UNet2DConditionModel"), ("ZImageTurbo", "ZImageTransformer2DModel")):
        kind = type(name, (nn.Module,), {})
        with pytest.raises(UnsupportedModelError, match=rf"nearest that it knows is .* \({nearest}\)"):
            tm.apply(kind(), TILES)
    with pytest.raises(UnsupportedModelError, match=r"Linear.*none is called like it: docs/models.md.*check_family"):
        tm.apply(nn.Linear(2, 2), TILES)


@pytest.mark.parametrize(
    ("family", "said"), [(3, "extending.md"), (object, "extending.md"), (FlowFamily, r"write FlowFamily\(\)")]
)
def test_what_is_no_family_is_not_registered(family: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tm.register_family(family)
