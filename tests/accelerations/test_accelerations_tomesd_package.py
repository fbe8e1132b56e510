import pytest
import torch
from torch import nn

from tokenmerge.accelerations.tomesd_package import patched, reaching_downsample, why_not
from tokenmerge.runtime.tiny_random import build_tiny_random


@torch.inference_mode()
def test_merges_while_it_is_in_and_leaves_no_trace() -> None:
    unet = build_tiny_random().unet
    torch.manual_seed(0)
    inputs = torch.randn(1, 4, 32, 32), torch.tensor(500), torch.randn(1, 77, 32)
    before = unet(*inputs).sample
    classes = [type(module) for module in unet.modules()]
    attributes = [set(module.__dict__) for module in unet.modules()]
    seen: list[int] = []
    block = unet.down_blocks[0].attentions[0].transformer_blocks[0]
    handle = block.attn1.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    with patched(unet, 0.5, 1):
        unet(*inputs)
    handle.remove()
    assert seen == [512]
    assert [type(module) for module in unet.modules()] == classes
    assert [set(module.__dict__) for module in unet.modules()] == attributes
    assert not unet._forward_pre_hooks
    assert torch.equal(unet(*inputs).sample, before)


@pytest.mark.parametrize(
    ("latent", "blocks", "expected"),
    [(4096, [4096, 1024, 256, 64], 1), (16384, [4096, 1024], 4), (16384, [4096], 2), (9 * 64, [9 * 16], 2)],
)
def test_reaches_blocks_that_the_default_would_miss(latent: int, blocks: list[int], expected: int) -> None:
    assert reaching_downsample(latent, blocks) == expected


def test_says_where_it_cannot_merge() -> None:
    from diffusers import PixArtTransformer2DModel

    assert why_not(build_tiny_random().unet) is None
    assert "BasicTransformerBlock" in (why_not(nn.Linear(1, 1)) or "")
    pixart = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=8,
        use_additional_conditions=False,
    )
    assert "adaptive norms" in (why_not(pixart) or "")
