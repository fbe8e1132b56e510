"""ToFu: which blocks prune, and what either does."""

import pytest
import torch

import tokenmerge as tm
from tokenmerge.config.interfaces import BlockContext
from tokenmerge.errors import ConfigError

GRID = (6, 6)


def operator_at(config, index, tokens, count=4):
    return config.plan(tokens, config.layout(GRID), BlockContext("block", index, count), None).queries


@pytest.mark.parametrize(
    ("prune", "pruning"),
    [(0.5, [0, 1]), (0, []), (1, [0, 1, 2, 3]), (0.3, [0, 1]), (0.25, [0]), ((1, 3), [1, 3]), ((), []), ([2], [2])],
)
def test_which_blocks_prune(prune, pruning):
    config = tm.ToFu(prune=prune)
    assert [index for index in range(4) if config.prunes(BlockContext("block", index, 4))] == pruning


def test_a_block_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="prune has block 4, and the model has 4"):
        tm.ToFu(prune=(0, 4)).prunes(BlockContext("block", 0, 4))


def test_pruned_tokens_are_real_ones():
    tokens = torch.randn(2, 36, 5)
    operator = operator_at(tm.ToFu(), 0, tokens)
    for sample in range(2):
        assert torch.equal(operator.merge(tokens)[sample], tokens[sample][operator.destinations[sample]])


def test_merged_tokens_keep_the_length_of_the_longest():
    tokens = torch.randn(2, 36, 5)
    fused, averaged = operator_at(tm.ToFu(), 3, tokens), operator_at(tm.ToMeSD(), 3, tokens)
    assert torch.equal(fused.destinations, averaged.destinations)
    by_mlerp, by_mean = fused.merge(tokens), averaged.merge(tokens)
    torch.testing.assert_close(torch.cosine_similarity(by_mlerp, by_mean, dim=-1), torch.ones(by_mean.shape[:2]))
    lengths = tokens.norm(dim=-1)
    for sample in range(2):
        for position in range(by_mean.shape[1]):
            members = fused.matching.place[sample] == position
            torch.testing.assert_close(by_mlerp[sample, position].norm(), lengths[sample][members].max())


def test_both_kinds_run_in_a_unet(tiny_unet, denoise):
    outputs = []
    for prune in (0.0, 0.5, 1.0):
        with tm.merged(tiny_unet, tm.ToFu(prune=prune, min_tokens=0, max_downsample=4)):
            outputs.append(denoise())
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert not torch.equal(outputs[first], outputs[second])
    assert all(output.isfinite().all() for output in outputs)
