"""Merging with what else a workflow does to a model: LoRA, ControlNet, caches, little memory, torch.compile."""

from __future__ import annotations

import warnings
from typing import Any

import comfy.cldm.cldm
import comfy.controlnet
import comfy.model_patcher
import comfy.ops
import pytest
import small_models
import torch
from comfy_extras.nodes_torch_compile import TorchCompileModel
from identity import Identity
from probes import Attentions, hooks_on, largest_difference
from small_models import sample, text
from torch import Tensor

import tokenmerge as tm
from tokenmerge.integrations.comfyui.sampling import Merging

every_model = pytest.mark.parametrize("make", [small_models.sdxl, small_models.flux], ids=lambda make: make.__name__)
SAME = Identity(scope="stack", skip_blocks=0)


def merged(model: Any) -> Any:
    return Merging(tm.TileMean()).on(model)


def skipped(model: Any) -> Any:
    return Merging(tm.SkipSteps()).on(model)


every_way = pytest.mark.parametrize("faster", [merged, skipped], ids=lambda way: way.__name__)


def with_lora(model: Any) -> Any:
    """A LoRA of every second weight matrix, as LoraLoader adds it."""
    generator = torch.Generator().manual_seed(8)
    clone = model.clone()
    matrices = [name for name, weight in model.model.state_dict().items() if weight.dim() == 2][::2]
    weights = model.model.state_dict()
    added = {name: (0.3 * torch.randn(weights[name].shape, generator=generator),) for name in matrices}
    assert clone.add_patches({name: ("diff", value) for name, value in added.items()}, 0.5)
    return clone


@every_model
@every_way
def test_a_lora_before_or_behind_the_node(make: Any, faster: Any) -> None:
    model = make()
    plain, changed = sample(model), sample(with_lora(model))
    assert largest_difference(changed, plain) > 1e-2
    assert largest_difference(sample(Merging(SAME).on(with_lora(model))), changed) < 1e-5
    before, behind = sample(faster(with_lora(model)), steps=6), sample(with_lora(faster(model)), steps=6)
    assert torch.equal(before, behind)
    assert largest_difference(before, sample(faster(model), steps=6)) > 1e-2
    assert torch.equal(sample(model), plain)
    assert hooks_on(model) == 0


class Residuals(comfy.controlnet.ControlBase):
    """A ControlNet that adds random tokens behind every Flux block."""

    def get_control(self, x_noisy: Tensor, t: Tensor, cond: Any, batched_number: int, transformer_options: Any) -> Any:
        tokens = x_noisy.shape[-2] * x_noisy.shape[-1] // 4
        generator = torch.Generator().manual_seed(9)
        added = [torch.randn(x_noisy.shape[0], tokens, 128, generator=generator) for _ in range(5)]
        return {"input": added[:2], "output": added[2:]}

    def copy(self) -> Residuals:
        copied = Residuals()
        self.copy_to(copied)
        return copied


def controlnet(model: Any) -> Any:
    if model.model.latent_format.latent_channels == 16:
        return Residuals()
    config = {name: value for name, value in small_models.SDXL.items() if name != "out_channels"}
    config.pop("transformer_depth_output")
    net = comfy.cldm.cldm.ControlNet(
        **config, hint_channels=3, dtype=torch.float32, operations=comfy.ops.disable_weight_init
    )
    device = model.load_device
    return comfy.controlnet.ControlNet(small_models.randomised(net), load_device=device)


@every_model
def test_a_controlnet(make: Any) -> None:
    model = make()
    image = torch.rand(1, 3, 256, 384, generator=torch.Generator().manual_seed(4))

    def controlled() -> Any:
        control = controlnet(model).set_cond_hint(image, 0.5, (0.0, 1.0))
        control.set_previous_controlnet(None)
        return text(1, control=control, control_apply_to_uncond=True)

    plain, steered = sample(model), sample(model, positive=controlled())
    assert largest_difference(steered, plain) > 1e-2
    assert largest_difference(sample(Merging(SAME).on(model), positive=controlled()), steered) < 1e-5
    seen, unmerged = Attentions(), Attentions()
    sample(unmerged.on(model), positive=controlled())
    sample(seen.on(merged(model)), positive=controlled(), steps=4)
    assert sum(seen.queries) < sum(unmerged.queries)
    full = sample(model, positive=controlled(), steps=12)
    near = largest_difference(sample(skipped(model), positive=controlled(), steps=12), full)
    # A model of random weights is hard to forecast.
    assert 0 < near < 2 * largest_difference(sample(model, steps=12), full)


@every_model
@every_way
def test_weights_that_are_brought_in_layer_by_layer(make: Any, faster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ComfyUI does if a model is larger than the memory of the GPU."""
    model = make()
    expected = sample(faster(with_lora(model)), steps=6)
    load = comfy.model_patcher.ModelPatcher.load
    lowvram = []

    def load_little(self: Any, device_to: Any = None, *_: Any, **others: Any) -> Any:
        done = load(self, device_to, **{**others, "lowvram_model_memory": 1, "full_load": False})
        lowvram.append(self.model.model_lowvram)
        return done

    fresh = make()
    monkeypatch.setattr(comfy.model_patcher.ModelPatcher, "load", load_little)
    assert largest_difference(sample(faster(with_lora(fresh)), steps=6), expected) < 1e-4
    assert True in lowvram
    assert hooks_on(fresh) == 0


@every_model
def test_easycache_counts_each_step_once(make: Any) -> None:
    """A calibrating step would run the model twice; with a cache around the model it does not."""
    from comfy_extras.nodes_easycache import EasyCacheNode

    model = make()
    cached = EasyCacheNode.execute(merged(model), 0.05, 0.0, 1.0, False).args[0]
    assert sample(cached, steps=6).isfinite().all()
    assert hooks_on(model) == 0


@every_model
def test_patches_of_other_nodes_see_all_tokens_in_grid_order(make: Any) -> None:
    """They look up regions of the image by position."""
    model = make()
    grid = 16 * 24
    seen: list[int] = []

    def patch(*args: Any, **kwargs: Any) -> Any:
        tokens = args[0]
        seen.append(tokens.shape[-2])
        return {} if kwargs else args[:3]

    name = "set_model_attn1_patch" if make is small_models.flux else "set_model_attn2_patch"
    patched = model.clone()
    getattr(patched, name)(patch)
    plain = sample(patched)
    lengths = set(seen)
    seen.clear()
    after = sample(merged(patched))
    assert set(seen) == lengths
    assert max(lengths) >= grid
    assert largest_difference(after, plain) > 0


@every_model
def test_torch_compile(make: Any) -> None:
    """ComfyUI's own node; and the compiled model used again without ours."""
    model = make()
    plain, expected = sample(model), sample(merged(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = TorchCompileModel.execute(model, "eager").args[0]
        assert largest_difference(sample(compiled), plain) < 1e-4
        assert largest_difference(sample(merged(compiled)), expected) < 1e-3
        assert largest_difference(sample(compiled), plain) < 1e-4
        # After torch.compile has broken the graph: what stands in front of the model must not call itself.
        assert largest_difference(sample(skipped(compiled), steps=6), sample(skipped(model), steps=6)) < 1e-3
    assert hooks_on(model) == 0


@pytest.mark.parametrize(
    ("make", "config"),
    [
        # Hooks inside of blocks, keys that are left out inside attention, and keys that are weighted there.
        (small_models.sd3, tm.ToMA(scope="site", skip_blocks=0, proportional=False)),
        (small_models.flux, tm.SampledKeys(skip_blocks=0)),
        (small_models.sd3, tm.TileMean(skip_blocks=0)),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_model_that_was_compiled_without_the_node(make: Any, config: Any) -> None:
    """By default torch.compile does not notice hooks that come later."""
    model = make()
    plain, expected = sample(model, steps=3), sample(Merging(config).on(model), steps=3)
    assert largest_difference(expected, plain) > 1e-3
    torch.compiler.reset()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = TorchCompileModel.execute(model, "eager").args[0]
        for _ in range(2):
            assert largest_difference(sample(compiled, steps=3), plain) < 1e-4
            assert largest_difference(sample(Merging(config).on(compiled), steps=3), expected) < 1e-4
        behind = TorchCompileModel.execute(Merging(config).on(model), "eager").args[0]
        assert largest_difference(sample(behind, steps=3), expected) < 1e-4
    assert hooks_on(model) == 0
