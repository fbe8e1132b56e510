"""Keys that count several times: without a mask the answers are those with one, in every way that it is done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from checks import SMALL, in_turn
from fake_gpu import FakeGpu
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tokenmerge as tm
from tokenmerge.engine import attention
from tokenmerge.models.attention_backends import PackageKernel, backend_of
from tokenmerge.ops.weighted_keys import PyTorchKernel, as_on_gpu, attend_weighted, weighs_without_mask

ATTENTION = functional.scaled_dot_product_attention
FLASH = PyTorchKernel("flash")


def heads(queries: int, keys: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, length, width, generator=generator) for length in (queries, keys, keys))
    return 3 * query, key, value


def one_weight(keys: int, image: tuple[int, int], weight: float) -> Tensor:
    weights = torch.zeros(2, 1, 1, keys)
    weights[..., image[0] : image[1]] = weight
    return weights


# -- the arithmetic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4, 40, 64, 128])
@pytest.mark.parametrize("image", [(5, 17), (0, 12), (5, 12)], ids=["text first", "text last", "text and references"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_two_answers_combined_are_the_answer_with_a_mask(width: int, image: Any, scale: float | None) -> None:
    query, key, value = heads(9, 17, width)
    weights = one_weight(17, image, math.log(16))
    masked = ATTENTION(query, key, value, attn_mask=weights, scale=scale)
    with NoMasks() as seen:
        found = attend_weighted(FLASH, query, key, value, weights, image, scale=scale)
    torch.testing.assert_close(found, masked, rtol=1e-5, atol=2e-5)
    assert seen.widths == []  # nothing was widened


@pytest.mark.parametrize("width", [4, 40, 64, 128, 248])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_channel_of_weights_is_a_mask_whose_weights_differ(width: int, scale: float | None) -> None:
    query, key, value = heads(9, 17, width)
    weights = torch.rand(2, 1, 1, 17, generator=torch.Generator().manual_seed(1)) * 3
    weights[0, ..., 4] = -math.inf  # a key that stands for nothing
    masked = ATTENTION(query, key, value, attn_mask=weights, scale=scale)
    with NoMasks() as seen:
        found = attend_weighted(FLASH, query, key, value, weights, None, scale=scale)
    torch.testing.assert_close(found, masked)
    assert seen.widths == [width + 8 - width % 8]


def test_heads_that_are_too_wide_keep_the_mask() -> None:
    query, key, value = heads(9, 17, 256)
    weights = torch.rand(2, 1, 1, 17)
    with pytest.raises(AssertionError, match="a mask"), NoMasks():
        attend_weighted(FLASH, query, key, value, weights, None)
    masked = ATTENTION(query, key, value, attn_mask=weights)
    torch.testing.assert_close(attend_weighted(FLASH, query, key, value, weights, None), masked)


@pytest.mark.parametrize("image", [(5, 17), None])
def test_gradients_are_those_with_a_mask(image: Any) -> None:
    weights = one_weight(17, (5, 17), math.log(16))

    def gradients(maskless: bool) -> tuple[Tensor, ...]:
        given = [each.requires_grad_() for each in heads(9, 17, 8)]
        found, masked = attend_weighted(FLASH, *given, weights, image), ATTENTION(*given, attn_mask=weights)
        answers = found if maskless else masked
        return torch.autograd.grad(answers.square().sum(), given)

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("image", [(5, 17), None], ids=["combined", "widened"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_loses_no_more_than_a_mask_does(image: Any, dtype: torch.dtype) -> None:
    exact = heads(64, 17, 128)
    weights = one_weight(17, (5, 17), math.log(16))
    expected = ATTENTION(*exact, attn_mask=weights)
    rounded = [each.to(dtype) for each in exact]
    masked = ATTENTION(*rounded, attn_mask=weights.to(dtype))
    found = attend_weighted(FLASH, *rounded, weights.to(dtype), image)
    assert found.dtype == dtype
    assert (found - expected).abs().mean() < 1.5 * (masked - expected).abs().mean()


@pytest.mark.parametrize("by", ["flash", "cudnn"])
def test_a_gpu_is_asked_for_sums_by_its_own_kernels(by: str) -> None:
    """On a device without values: which kernels are called, and the form of what they return."""
    gpu = FakeGpu()
    query, key, value = (gpu.tensor(each.bfloat16()) for each in heads(9, 17, 64))
    weights = gpu.tensor(one_weight(17, (5, 17), 1.0).bfloat16())
    with gpu.running(), Operators() as seen:
        answers = attend_weighted(PyTorchKernel(by), query, key, value, weights, (5, 17))
    assert answers.shape == query.shape
    assert answers.dtype == torch.bfloat16
    assert seen.names.count(f"_scaled_dot_product_{by}_attention") == 2


# -- in models -------------------------------------------------------------------------------------------------------

METHODS = {
    "tile mean": tm.TileMean(tile=2, correction=None, **SMALL),
    "tile mean, outliers": tm.TileMean(tile=2, correction=None, outliers=3, **SMALL),
    "sampled keys": tm.SampledKeys(**SMALL),
    "sampled keys, outliers": tm.SampledKeys(outliers=3, **SMALL),
    "ToMA": tm.ToMA(ratio=0.5, tile=(2, 2), **SMALL),
    "tile mean, corrected": tm.TileMean(tile=2, correction=tm.FullSteps(every=2), **SMALL),
}
# One for each way of giving attention its weights: both forms of masks, and inside, with text first and last.
MODELS = [model for model in TINY_MODELS if model.name in ("sd15", "flux", "sd3", "auraflow", "cogvideox")]
TIMES = (0.9, 0.8, 0.7)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The way of a GPU on this device, for attention of any size."""
    monkeypatch.setattr(attention, "SMALL", 0)
    with as_on_gpu("cpu"):
        yield


def images(tiny: TinyModel, method: str) -> list[Tensor]:
    model = made(tiny.build)
    with tm.merged(model, METHODS[method]):
        return [tiny.call(model, [0, 1], tiny.grid(8, 8), time) for time in TIMES]


@in_turn("tiny, method", list(METHODS), MODELS)
def test_a_model_gives_the_same_with_and_without_masks(
    tiny: TinyModel, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = images(tiny, method)
    monkeypatch.setattr(attention, "SMALL", 0)
    with as_on_gpu("cpu"), NoMasks():
        found = images(tiny, method)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_small_attention_keeps_its_mask() -> None:
    """It takes less time than the launches that a mask saves."""
    with as_on_gpu("cpu"), pytest.raises(AssertionError, match="a mask"), NoMasks():
        images(tiny("flux"), "tile mean")


def test_a_gpu_without_flash_attention_keeps_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    assert weighs_without_mask(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, flash in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        assert weighs_without_mask(device) == flash
    assert not weighs_without_mask(torch.device("cpu"))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_other_processors_are_given_masks() -> None:
    """Attention that is not PyTorch's takes its weights as the argument it has for them."""
    from diffusers.models.attention_processor import AttnProcessor

    model = made(tiny("sd15").build)
    method, unet = "sampled keys, outliers", tiny("sd15")
    model.set_attn_processor(AttnProcessor())
    with tm.merged(model, METHODS[method]):
        found = [unet.call(model, [0, 1], unet.grid(8, 8), time) for time in TIMES]
    expected = images(unet, method)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", ["sd15", "flux"])
@pytest.mark.parametrize("method", ["tile mean", "sampled keys, outliers"])
def test_it_compiles_without_a_break(name: str, method: str) -> None:
    expected = images(tiny(name), method)
    model = made(tiny(name).build)
    torch._dynamo.reset()
    with tm.merged(model, METHODS[method]):
        model.compile_repeated_blocks(fullgraph=True, backend="eager")
        found = [tiny(name).call(model, [0, 1], tiny(name).grid(8, 8), time) for time in TIMES]
    torch._dynamo.reset()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_explain_says_which_kernels_attention_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(name: str, method: str) -> str:
        with tm.merged(made(tiny(name).build), METHODS[method]) as handle:
            return str(handle.explain(size=(256, 256)))

    assert "every kernel stays usable" in said("sd15", "sampled keys")
    assert "because attention is small" in said("flux", "tile mean")
    monkeypatch.setattr(attention, "SMALL", 0)
    assert "flash kernels without a mask, over image keys" in said("flux", "tile mean")
    assert "flash kernels without a mask, with a channel" in said("flux", "tile mean, outliers")
    assert "flash kernels without a mask, with a channel" in said("sd15", "sampled keys, outliers")


# -- packages --------------------------------------------------------------------------------------------------------


def package(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
    **_: Any,
) -> Any:
    """Attention as flash-attn and SageAttention have it: (B, L, H, D), no mask, sums if asked for."""
    assert attn_mask is None, "a mask"
    logits = torch.einsum("bqhd,bkhd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    answers = torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), value)
    return (answers, logits.logsumexp(-1)) if return_lse else answers


@pytest.fixture
def flash_package(monkeypatch: pytest.MonkeyPatch) -> Any:
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    table = _AttentionBackendRegistry._backends
    monkeypatch.setitem(table, AttentionBackendName.FLASH, package)
    return lambda: table[AttentionBackendName.FLASH]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["flux", "flux2"])
def test_packages_without_masks_can_be_used(name: str, method: str, flash_package: Any) -> None:
    expected = images(tiny(name), method)
    model = made(tiny(name).build)
    for module in model.modules():
        if hasattr(module, "processor"):
            module.processor._attention_backend = "flash"
    with tm.merged(model, METHODS[method]), NoPyTorchAttention():
        found = [tiny(name).call(model, [0, 1], tiny(name).grid(8, 8), time) for time in TIMES]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert flash_package() is package  # as it was before


@pytest.mark.usefixtures("as_on_a_gpu")
def test_an_error_leaves_nothing_in_the_place_of_a_package(flash_package: Any) -> None:
    model = made(tiny("flux").build)
    block = model.transformer_blocks[0].attn
    block.processor._attention_backend = "flash"

    def fail(*_: Any) -> None:
        assert flash_package() is not package
        raise ZeroDivisionError

    block.to_out[0].register_forward_hook(fail)
    with tm.merged(model, METHODS["tile mean"]), pytest.raises(ZeroDivisionError):
        tiny("flux").call(model, [0], tiny("flux").grid(8, 8))
    assert flash_package() is package


def test_sums_come_in_the_order_of_each_package() -> None:
    query, key, value = heads(9, 17, 8)
    _, expected = FLASH.attend_with_sums(query, key, value)

    def transposed(*given: Tensor, **options: Any) -> Any:
        answers, sums = package(*given, **options)
        return answers, sums.transpose(1, 2)

    for function, sums_last in ((package, False), (transposed, True)):
        found = PackageKernel(function, sums_last).attend_with_sums(query, key, value)
        assert found is not None
        torch.testing.assert_close(found[1], expected)


@pytest.mark.parametrize(
    ("name", "takes_mask", "sums_by"),
    [
        ("native", True, "flash"),
        ("_native_flash", False, "flash"),
        ("_native_cudnn", False, "cudnn"),
        ("sage", False, ""),
    ],
)
def test_the_backend_of_a_module_is_known(name: str, takes_mask: bool, sums_by: str) -> None:
    block = made(tiny("flux").build).transformer_blocks[0].attn
    block.processor._attention_backend = name
    backend = backend_of(block)
    assert (backend.name, backend.takes_mask, backend.sums_by) == (name, takes_mask, sums_by)


def test_kernels_that_a_user_rules_out_are_not_used() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    block = made(tiny("sd3").build).transformer_blocks[0].attn
    for kernel, takes_mask, sums_by in (
        (SDPBackend.FLASH_ATTENTION, False, "flash"),
        (SDPBackend.CUDNN_ATTENTION, False, "cudnn"),
        (SDPBackend.EFFICIENT_ATTENTION, True, ""),
    ):
        with sdpa_kernel(kernel):
            assert (backend_of(block).takes_mask, backend_of(block).sums_by) == (takes_mask, sums_by)


# -- what is looked at -----------------------------------------------------------------------------------------------


class NoMasks(TorchFunctionMode):
    """Refuses additive masks over keys. Enter it outside of what gives attention its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is ATTENTION:
            assert (args[3] if len(args) > 3 else kwargs.get("attn_mask")) is None, "a mask"
            self.widths.append((args[0] if args else kwargs["query"]).shape[-1])
        return func(*args, **kwargs)


class NoPyTorchAttention(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not ATTENTION
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
