from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tokenmerge.bench.blocks import block_modules, observe_blocks, without_blocks
from tokenmerge.bench.subject import Subject
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Block, Family, Stack


class JointBlock(nn.Module):
    """Returns text and image tokens, as SD3's and Flux's blocks do; the last one returns no text."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.last = last

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> tuple[Tensor | None, Tensor]:
        return None if self.last else encoder_hidden_states * 2, self.linear(hidden_states)


class JointModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([JointBlock(False), JointBlock(True)])

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor | None, Tensor]:
        text, image = self.blocks[0](image, encoder_hidden_states=text)
        result: tuple[Tensor | None, Tensor] = self.blocks[1](hidden_states=image, encoder_hidden_states=text)
        return result


class JointFamily(Family):
    def stacks(self, model: Any) -> list[Stack]:
        blocks = tuple(Block(f"blocks.{index}", block, ()) for index, block in enumerate(model.blocks))
        return [Stack("blocks", "blocks", model, lambda args, kwargs: (1, 1), blocks)]


def output(subject: Subject) -> Tensor:
    result: Tensor = subject.call(0).sample
    return result


def test_bypass_skips_every_block_and_restores_the_model_bit_for_bit(subject: Subject) -> None:
    before = output(subject)
    attributes = {name: dict(module.__dict__) for name, module in subject.model.named_modules()}
    seen = observe_blocks(subject.model, subject.family, lambda: subject.call(0))
    ran = []
    handles = [
        part.register_forward_hook(lambda *_: ran.append(1))
        for block in block_modules(subject.model, subject.family).values()
        for part in block.children()
    ]
    with without_blocks(subject.model, subject.family, seen):
        assert not torch.equal(output(subject), before)
    assert not ran
    for handle in handles:
        handle.remove()
    assert torch.equal(output(subject), before)
    for name, module in subject.model.named_modules():
        assert module.__dict__.keys() == attributes[name].keys()


def test_notes_how_many_tokens_each_block_gets(subject: Subject) -> None:
    seen = observe_blocks(subject.model, subject.family, lambda: subject.call(0))
    assert {block.tokens for block in seen.values()} == {1024, 256}
    assert len(seen) == len(block_modules(subject.model, subject.family))


def test_restores_after_an_error_and_keeps_a_forward_that_was_there(subject: Subject) -> None:
    seen = observe_blocks(subject.model, subject.family, lambda: subject.call(0))
    first = next(iter(block_modules(subject.model, subject.family).values()))
    wrapped = first.forward
    first.forward = wrapped  # as accelerate does
    with pytest.raises(ZeroDivisionError), without_blocks(subject.model, subject.family, seen):
        raise ZeroDivisionError
    assert first.__dict__["forward"] is wrapped


def test_hands_on_text_and_image_of_joint_blocks() -> None:
    model, family = JointModel(), JointFamily()
    image, text = torch.randn(1, 9, 4), torch.randn(1, 3, 4)
    seen = observe_blocks(model, family, lambda: model(image, text))
    with without_blocks(model, family, seen):
        kept_text, kept_image = model(image, text)
    assert kept_text is None
    assert torch.equal(kept_image, image)


def test_a_block_that_changes_its_shape_is_a_sentence() -> None:
    model = JointModel()
    model.blocks[1].linear = nn.Linear(4, 5)
    with pytest.raises(MergeRuntimeError, match=r"blocks\.1 returns something .* --no-limit"):
        observe_blocks(model, JointFamily(), lambda: model(torch.randn(1, 9, 4), torch.randn(1, 3, 4)))
