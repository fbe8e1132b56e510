"""Weights that go to PyTorch's own attention reach one attention module, and no other, whatever happens in it."""

from __future__ import annotations

import pytest
import torch
from checks import TILES, close
from tiny_models import made
from tiny_models.joint_attention import sd3, sd3_inputs
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

import tokenmerge as tm
from tokenmerge.engine.inner import Asked, InnerAttention, Weights
from tokenmerge.errors import MergeRuntimeError

INPUTS = sd3_inputs([1], (8, 8))


class Attention(nn.Module):
    """The least that weights can reach: attention inside a module."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def test_weights_stand_beside_masks_of_the_attention_itself() -> None:
    query, key, value = torch.randn(3, 2, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5]).view(1, 1, 1, 5)
    hidden = torch.tensor([True, True, False, True, True]).view(1, 1, 1, 5)
    additive = torch.zeros(1, 1, 1, 5).masked_fill(~hidden, -torch.inf)
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=weights + additive)
    attention = Attention()
    for mask in (hidden, additive):
        with InnerAttention(None, 5, None, Weights(weights)):
            assert torch.equal(attention(query, key, value, mask), expected)
    with InnerAttention(None, 5, None, Weights(weights)):
        # Another number of keys or queries is another attention, such as an adapter's.
        fewer_keys = attention(query, key[..., :3, :], value[..., :3, :])
        fewer_queries = attention(query[..., :3, :], key, value)
    assert torch.equal(fewer_keys, functional.scaled_dot_product_attention(query, key[..., :3, :], value[..., :3, :]))
    assert torch.equal(fewer_queries, functional.scaled_dot_product_attention(query[..., :3, :], key, value))


def test_keys_that_are_not_read_might_as_well_not_be_there() -> None:
    query, key, value = torch.randn(3, 2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    read = torch.tensor([[4, 0], [1, 3]])
    own = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor([0.5, 1.0]).view(1, 1, 1, 2)
    rows = read[:, None, :, None].expand(2, 3, 2, 4)
    fewer = key.gather(2, rows), value.gather(2, rows)
    attention = Attention()
    with InnerAttention(None, 5, read, None) as inner:
        plain = attention(query, key, value)
        assert inner.used
    close(plain, functional.scaled_dot_product_attention(query, *fewer))
    mask = own.gather(3, read[:, None, None].expand(2, 1, 5, 2)) + weights
    with InnerAttention(None, 5, read, Weights(weights)):
        masked = attention(query, key, value, own)
    close(masked, functional.scaled_dot_product_attention(query, *fewer, attn_mask=mask))


@pytest.mark.parametrize("read", [None, torch.tensor([[4, 0], [1, 3]])], ids=["all keys", "some keys"])
@pytest.mark.parametrize("rows", [1, 5])
def test_each_token_takes_the_answer_to_the_query_that_stands_for_it(read: Tensor | None, rows: int) -> None:
    query, key, value = torch.randn(3, 2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    own = torch.randn(2, 1, rows, 5, generator=torch.Generator().manual_seed(1))
    stands_for = torch.tensor([0, 1, 1, 0, 1])  # which of the queries, for each token
    asked = Asked(torch.tensor([[3, 1], [0, 4]]), lambda answers: answers.index_select(1, stands_for))
    attention = Attention()
    with InnerAttention(None, 5, read, None):
        every = attention(query, key, value, own)
    with InnerAttention(None, 5, read, None, asked):
        got = attention(query, key, value, own)
    close(got[0], every[0][:, [3, 1, 1, 3, 1]])
    close(got[1], every[1][:, [0, 4, 4, 0, 4]])


def test_an_interrupt_leaves_no_weights_behind() -> None:
    """Ctrl-C passes no hook on its way out, so the mode is still entered; no other attention may get its weights."""
    model = made(sd3)
    handle = tm.apply(model, TILES)
    interrupting = model.transformer_blocks[0].attn.to_out[0].register_forward_hook(interrupt)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        model(**INPUTS)
    interrupting.remove()
    assert _get_current_function_mode_stack(), "nothing was left, so nothing is shown"
    query, key, value = torch.randn(3, 1, 2, 32 + 5, 4, generator=torch.Generator().manual_seed(0))
    attended = Attention()(query, key, value)
    with torch.device("cpu"):  # a mode on top of the one that was left
        handle.remove()
        assert len(_get_current_function_mode_stack()) == 1
    assert not _get_current_function_mode_stack()
    assert torch.equal(attended, Attention()(query, key, value))


def test_an_error_in_the_attention_leaves_no_weights_behind() -> None:
    model = made(sd3)
    with torch.no_grad():
        expected = model(**INPUTS, return_dict=False)[0]
        handle = tm.apply(model, TILES)
        failing = model.transformer_blocks[0].attn.to_out[0].register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            model(**INPUTS)
        assert not _get_current_function_mode_stack()
        failing.remove()
        handle.remove()
        assert torch.equal(model(**INPUTS, return_dict=False)[0], expected)


def test_an_attention_that_cannot_be_weighed_is_an_error() -> None:
    class OwnAttention:
        def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):  # type: ignore
            return (hidden_states, encoder_hidden_states) if encoder_hidden_states is not None else hidden_states

    model = made(sd3)
    model.set_attn_processor(OwnAttention())
    with torch.no_grad():
        with tm.merged(model, TILES), pytest.raises(MergeRuntimeError, match="proportional=False"):
            model(**INPUTS)
        assert not _get_current_function_mode_stack()
        with tm.merged(model, tm.ToMA(ratio=0.75, tile=(2, 2), min_tokens=16, proportional=False)):
            model(**INPUTS)


def fail(*_: object) -> None:
    raise ZeroDivisionError


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
