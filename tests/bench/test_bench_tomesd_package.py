import pytest
import torch
from torch import nn

from tokenmerge.bench.blocks import block_modules
from tokenmerge.bench.subject import Subject
from tokenmerge.bench.tomesd_package import patched, reaching_downsample, why_not


def test_merges_while_it_is_in_and_leaves_no_trace(subject: Subject) -> None:
    before = subject.call(0).sample
    classes = [type(module) for module in subject.model.modules()]
    attributes = [set(module.__dict__) for module in subject.model.modules()]
    seen: list[int] = []
    block = next(iter(block_modules(subject.model, subject.family).values()))
    handle = block.attn1.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))  # type: ignore[union-attr]
    with patched(subject.model, 0.5, 1):
        subject.call(0)
    handle.remove()
    assert seen == [512]
    assert [type(module) for module in subject.model.modules()] == classes
    assert [set(module.__dict__) for module in subject.model.modules()] == attributes
    assert not subject.model._forward_pre_hooks
    assert torch.equal(subject.call(0).sample, before)


@pytest.mark.parametrize(
    ("latent", "blocks", "expected"),
    [(4096, [4096, 1024, 256, 64], 1), (16384, [4096, 1024], 4), (16384, [4096], 2), (9 * 64, [9 * 16], 2)],
)
def test_reaches_blocks_that_the_default_would_miss(latent: int, blocks: list[int], expected: int) -> None:
    assert reaching_downsample(latent, blocks) == expected


def test_says_where_it_cannot_merge(unet: nn.Module) -> None:
    from diffusers import PixArtTransformer2DModel

    assert why_not(unet) is None
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
