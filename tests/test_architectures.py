"""Architectures built by name have the published number of parameters, and no weights unless asked for."""

from __future__ import annotations

import pytest
import torch

from tokenmerge.errors import ConfigError, TokenMergeError
from tokenmerge.models.published import ARCHITECTURES, architecture, build, build_from_config

PARAMETERS = {
    "sd15": 859_520_964,
    "sd21": 865_910_724,
    "sdxl": 2_567_463_684,
    "sdxl-refiner": 2_259_526_660,
    "pixart": 611_349_152,
    "pixart-sigma": 610_856_096,
    "sd3-medium": 2_028_328_000,
    "sd35-medium": 2_243_171_520,
    "sd35-large": 8_056_627_520,
    "flux": 11_901_408_320,
    "flux-schnell": 11_891_178_560,
    "kolors": 2_579_458_820,
    "flux2": 32_223_281_152,
    "flux2-klein-4b": 3_875_544_576,
    "flux2-klein-9b": 9_078_581_248,
    "qwen-image": 20_430_401_088,
    "qwen-image-edit": 20_430_401_088,
    "sana": 1_604_462_752,
    "auraflow": 6_858_605_568,
    "z-image": 6_154_908_736,
    "z-image-turbo": 6_154_908_736,
    "lumina2": 2_609_769_152,
    "chroma": 8_899_983_424,
    "ovis-image": 7_370_449_728,
    "longcat-image": 6_270_668_864,
    "bria": 11_879_375_936,
    "bria-fibo": 8_285_836_848,
    "cogview3-plus": 2_848_836_672,
    "cogview4": 6_369_118_272,
    "glm-image": 6_926_882_880,
    "hunyuan-image": 17_425_795_520,
    "hunyuan-dit": 1_499_952_032,
    "dit": 749_826_464,
    "krea2": 12_820_073_036,
    "flux3": 5_538_458_368,
    "omnigen": 3_762_072_592,
    "ernie-image": 8_033_490_048,
    "hidream": 17_105_733_184,
    "wan-1.3b": 1_418_996_800,
    "wan-14b": 14_288_491_584,
    "wan-vace-14b": 17_337_592_896,
    "wan-animate-14b": 17_274_816_884,
    "chronoedit-14b": 16_394_878_784,
    "skyreels-14b": 14_288_491_584,
    "ltx-video": 1_923_385_472,
    "ltx2": 18_876_174_592,
    "hunyuan-video": 12_821_012_544,
    "hunyuan-video-1.5": 8_326_608_160,
    "cogvideox-2b": 1_693_783_872,
    "cogvideox-5b": 5_570_283_072,
    "consisid": 5_570_479_680,
    "mochi": 10_027_677_744,
    "allegro": 2_771_907_856,
    "easyanimate": 11_799_053_376,
    "cosmos2-2b": 1_956_397_056,
    "kandinsky5-lite": 2_007_702_848,
    "latte": 1_057_246_880,
    "animatediff": 1_312_730_244,
    "svd": 1_524_623_082,
    "text-to-video": 1_411_233_860,
    "i2vgen-xl": 1_420_469_224,
    "qwen-image-2.1": 7_115_124_736,
    "prx": 1_170_691_648,
    "nucleus-image": 22_672_328_192,
}


# One of each way to build them. `make test-all` builds the others too.
QUICK = ("sd15", "sdxl", "pixart", "sd3-medium", "flux", "qwen-image", "z-image", "wan-1.3b", "svd", "latte")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in ARCHITECTURES]
)
def test_size_of_the_real_model(name: str) -> None:
    model = build(name)
    assert sum(weight.numel() for weight in model.parameters()) == PARAMETERS[name]
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert not model.training


def test_flux_cut_to_a_few_blocks() -> None:
    model = build("flux", blocks=(1, 2))
    assert len(model.transformer_blocks) == 1  # type: ignore[arg-type]
    assert len(model.single_transformer_blocks) == 2  # type: ignore[arg-type]
    assert build("sd35-medium", blocks=[3]).config.dual_attention_layers == (0, 1, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "blocks", "said"),
    [
        ("sd15", (1,), "UNet whose blocks cannot be cut"),
        ("flux", (1,), "2 whole numbers"),
        ("flux", (0, 2), "1 to 19, 1 to 38"),
        ("pixart", (29,), "1 to 28"),
    ],
)
def test_wrong_blocks(name: str, blocks: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(name, blocks=blocks)


def test_an_unknown_name_suggests_one() -> None:
    with pytest.raises(ConfigError, match="did you mean sdxl"):
        architecture("sdx")
    with pytest.raises(ConfigError, match="`tokenmerge explain --help` lists"):
        architecture("nothing like it")


def test_a_class_that_diffusers_has_not() -> None:
    with pytest.raises(TokenMergeError, match="has no model class NoSuchModel"):
        build_from_config("NoSuchModel", {})


def test_random_weights_are_the_same_each_time_and_leave_the_generator_alone() -> None:
    small = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8, "cross_attention_dim": 16}
    small |= {"caption_channels": 8, "sample_size": 16}
    config = {**ARCHITECTURES["pixart"].config, **small, "use_additional_conditions": False}
    before = torch.get_rng_state()
    first, second = (build_from_config("PixArtTransformer2DModel", config, "cpu", torch.bfloat16) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert one.device.type == "cpu"
        assert one.dtype == torch.bfloat16
        assert torch.equal(one, other)
    assert torch.get_default_dtype() == torch.float32
