"""Merge and unmerge as matrices: sums, the hard limit, the pseudo-inverse, padding, half precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmerge.ops.attention_merge import (
    assignment_weights,
    merge_matrix,
    represented,
    unmerge_by_pinv,
    unmerge_by_transpose,
)
from tokenmerge.ops.similarity import unit_tokens

quick = settings(deadline=None, max_examples=40, derandomize=True, database=None)


def some_tokens(groups=2, size=12, channels=6, seed=0, dtype=torch.float32):
    return torch.randn(groups, size, channels, generator=torch.Generator().manual_seed(seed)).to(dtype)


@quick
@given(
    size=st.integers(1, 10),
    temperature=st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_each_token_is_shared_out_whole(size, temperature, seed, data):
    count = data.draw(st.integers(1, size))
    destinations = torch.tensor([data.draw(st.permutations(range(size)))[:count]])
    weights = assignment_weights(unit_tokens(some_tokens(1, size, seed=seed)), destinations, temperature)
    assert weights.shape == (1, count, size)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(1, size))
    torch.testing.assert_close(represented(weights).sum(), torch.tensor(float(size)))
    torch.testing.assert_close(merge_matrix(weights).sum(dim=2), torch.ones(1, count))
    torch.testing.assert_close(unmerge_by_transpose(weights).sum(dim=2), torch.ones(1, size))


def test_a_tiny_temperature_averages_by_nearest_destination():
    tokens = some_tokens(groups=1, size=20)
    destinations = [3, 8, 15, 0]
    similarity = torch.nn.functional.cosine_similarity(
        tokens[0][destinations].double().unsqueeze(1), tokens[0].double().unsqueeze(0), dim=-1
    )
    nearest = similarity.argmax(dim=0)
    means = torch.stack([tokens[0][nearest == place].mean(dim=0) for place in range(4)])

    weights = assignment_weights(unit_tokens(tokens), torch.tensor([destinations]), temperature=1e-6)
    merged = merge_matrix(weights) @ tokens
    torch.testing.assert_close(merged[0], means)
    torch.testing.assert_close((unmerge_by_transpose(weights) @ merged)[0], means[nearest])


def test_every_token_its_own_destination_is_the_identity():
    tokens = some_tokens(size=5, channels=8)
    weights = assignment_weights(unit_tokens(tokens), torch.arange(5).expand(2, -1), temperature=1e-3)
    torch.testing.assert_close(merge_matrix(weights) @ tokens, tokens)
    torch.testing.assert_close(unmerge_by_pinv(weights) @ tokens, tokens)


def test_pinv_is_exact_on_what_merging_can_express():
    weights = assignment_weights(unit_tokens(some_tokens()), torch.tensor([[0, 4, 7], [11, 2, 5]]), temperature=0.5)
    down, up = merge_matrix(weights), unmerge_by_pinv(weights)
    merged = some_tokens(size=3, seed=1)
    torch.testing.assert_close(down @ (up @ merged), merged, atol=1e-4, rtol=1e-4)
    spanned = down.transpose(-1, -2) @ merged
    torch.testing.assert_close(up @ (down @ spanned), spanned, atol=1e-4, rtol=1e-4)


def test_pinv_is_finite_where_destinations_are_alike():
    tokens = torch.ones(1, 6, 4)
    up = unmerge_by_pinv(assignment_weights(unit_tokens(tokens), torch.tensor([[0, 1, 2]]), temperature=0.01))
    assert up.isfinite().all()
    torch.testing.assert_close(up @ torch.ones(1, 3, 4), tokens)


def test_padding_gets_no_weight():
    valid = torch.tensor([[True] * 9 + [False] * 3, [True] * 12])
    unit = unit_tokens(some_tokens())
    destinations = torch.tensor([[0, 4], [5, 10]])
    weights = assignment_weights(unit, destinations, 0.1, valid)
    assert (weights[0, :, 9:] == 0).all()
    assert represented(weights).sum(dim=1).tolist() == pytest.approx([9, 12])
    without = assignment_weights(unit[:1, :9], destinations[:1], 0.1)
    torch.testing.assert_close(weights[:1, :, :9], without)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 3e4])
def test_half_precision_tokens_get_float32_weights(dtype, scale):
    tokens = (some_tokens() * scale).clamp(-6e4, 6e4).to(dtype)
    destinations = torch.tensor([[0, 4, 7], [11, 2, 5]])
    weights = assignment_weights(unit_tokens(tokens), destinations, temperature=0.01)
    assert weights.dtype == torch.float32
    assert weights.isfinite().all()
    torch.testing.assert_close(weights, assignment_weights(unit_tokens(tokens.float()), destinations, 0.01))
    assert unmerge_by_pinv(weights).isfinite().all()
