"""Unit tokens are float32 and finite, whatever comes in."""

import pytest
import torch

from tokenmerge.ops.similarity import cosine_similarity, unit_tokens

HALVES = [torch.float16, torch.bfloat16]


def test_matches_cosine_similarity():
    tokens = torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.cosine_similarity(tokens.unsqueeze(2), tokens.unsqueeze(1), dim=-1)
    torch.testing.assert_close(cosine_similarity(unit_tokens(tokens)).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_is_float32_and_of_length_one(dtype):
    unit = unit_tokens(torch.randn(1, 9, 4).to(dtype))
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(1, 9))


@pytest.mark.parametrize("dtype", HALVES)
def test_largest_half_precision_values_do_not_overflow(dtype):
    huge = torch.full((1, 3, 64), 60_000.0).to(dtype)
    torch.testing.assert_close(cosine_similarity(unit_tokens(huge)), torch.ones(1, 3, 3))


@pytest.mark.parametrize("broken", [0.0, float("nan"), float("inf"), -float("inf")])
def test_a_token_without_direction_is_like_none(broken):
    tokens = torch.randn(1, 4, 3)
    tokens[0, 2] = broken
    similarity = cosine_similarity(unit_tokens(tokens))
    assert similarity.isfinite().all()
    assert (similarity[0, 2] == 0).all()
    others = [0, 1, 3]
    torch.testing.assert_close(similarity[0][others][:, others], cosine_similarity(unit_tokens(tokens[:, others]))[0])
