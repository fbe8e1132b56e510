"""Cells, matching and the three ways of merging, against plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmerge.ops.bipartite import (
    count_destinations,
    match_tokens,
    merge_by_mean,
    merge_by_mlerp,
    merge_by_pruning,
    split_tokens,
    unmerge_by_copy,
)
from tokenmerge.ops.similarity import unit_tokens

quick = settings(deadline=None, max_examples=60, derandomize=True, database=None)
CPU = torch.device("cpu")


def random_tokens(batch, tokens, channels=5, seed=0):
    return torch.randn(batch, tokens, channels, generator=torch.Generator().manual_seed(seed))


def matched(tokens, grid, cell=(2, 2), merged=None, draw=None, one_for_batch=False):
    sources, destinations = split_tokens(grid, cell, 1, draw, CPU)
    count = len(sources) // 2 if merged is None else merged
    return match_tokens(unit_tokens(tokens), sources, destinations, count, one_for_batch)


def groups_of(matching, sample):
    """Tokens that each kept one stands for, by its position."""
    groups = [[] for _ in range(matching.kept.shape[1])]
    for token, position in enumerate(matching.place[sample].tolist()):
        groups[position].append(token)
    return groups


@st.composite
def cuttings(draw):
    grid = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=3)))
    cell = tuple(draw(st.integers(1, length)) for length in grid)
    area = math.prod(cell)
    return grid, cell, draw(st.integers(1, area)), draw(st.none() | st.integers(0, 10**9))


@quick
@given(cuttings())
def test_each_whole_cell_gives_its_destinations_and_every_token_is_one_or_the_other(case):
    grid, cell, per_cell, draw = case
    sources, destinations = split_tokens(grid, cell, per_cell, draw, CPU)
    assert sorted([*sources.tolist(), *destinations.tolist()]) == list(range(math.prod(grid)))
    assert len(destinations) == count_destinations(grid, cell, per_cell)
    places = torch.stack(torch.unravel_index(destinations, grid), dim=1)
    cells = [tuple(place // torch.tensor(cell)) for place in places]
    counts = {tuple(map(int, where)): 0 for where in cells}
    for where in cells:
        counts[tuple(map(int, where))] += 1
    assert set(counts.values()) <= {per_cell}
    assert len(counts) == math.prod(length // side for length, side in zip(grid, cell, strict=True))


def test_fixed_destinations_are_top_left_and_then_spread_out():
    assert split_tokens((4, 4), (2, 2), 1, None, CPU)[1].tolist() == [0, 2, 8, 10]
    assert split_tokens((2, 2), (2, 2), 2, None, CPU)[1].tolist() == [0, 3]
    assert split_tokens((4, 4), (4, 4), 2, None, CPU)[1].tolist() == [0, 10]


def test_random_destinations_can_be_repeated_and_fall_everywhere_alike():
    first = split_tokens((64, 64), (2, 2), 1, 7, CPU)[1]
    assert torch.equal(first, split_tokens((64, 64), (2, 2), 1, 7, CPU)[1])
    assert not torch.equal(first, split_tokens((64, 64), (2, 2), 1, 8, CPU)[1])
    rows, columns = first // 64 % 2, first % 2
    for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
        share = ((rows == corner[0]) & (columns == corner[1])).float().mean()
        assert 0.2 < share < 0.3


def test_random_draws_do_not_touch_torch_randomness():
    before = torch.get_rng_state()
    split_tokens((8, 8), (2, 2), 1, 3, CPU)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("grid", "cell"), [((6, 6), (2, 2)), ((5, 7), (2, 3)), ((2, 4, 4), (1, 2, 2))])
def test_matching_equals_a_loop_over_sources(grid, cell, seed):
    tokens = random_tokens(2, math.prod(grid), seed=seed)
    sources, destinations = split_tokens(grid, cell, 1, seed, CPU)
    count = len(sources) // 3
    matching = match_tokens(unit_tokens(tokens), sources, destinations, count)
    for sample in range(2):
        unit = torch.nn.functional.normalize(tokens[sample].double(), dim=-1)
        best = {}
        for source in sources.tolist():
            likeness = {int(target): float(unit[source] @ unit[target]) for target in destinations}
            target = max(likeness, key=likeness.__getitem__)
            best[source] = (likeness[target], target)
        gone = sorted(best, key=lambda source: -best[source][0])[:count]
        expected = {target: [target] for target in destinations.tolist()}
        expected |= {source: [source] for source in sources.tolist() if source not in gone}
        for source in gone:
            expected[best[source][1]].append(source)
        kept = matching.kept[sample].tolist()
        assert len(kept) == math.prod(grid) - count
        assert dict(zip(kept, groups_of(matching, sample), strict=True)) == {
            token: sorted(group) for token, group in expected.items()
        }


def test_mass_counts_tokens_and_merging_takes_their_mean():
    tokens = random_tokens(3, 35)
    matching = matched(tokens, (5, 7))
    merged, pruned = merge_by_mean(tokens, matching), merge_by_pruning(tokens, matching)
    assert matching.mass.sum(dim=1).tolist() == [35, 35, 35]
    for sample in range(3):
        for position, group in enumerate(groups_of(matching, sample)):
            assert matching.mass[sample, position] == len(group)
            torch.testing.assert_close(merged[sample, position], tokens[sample][group].mean(dim=0))
            assert torch.equal(pruned[sample, position], tokens[sample][matching.kept[sample, position]])


def test_unmerging_copies_to_all_that_a_token_stands_for():
    tokens = random_tokens(2, 36)
    matching = matched(tokens, (6, 6))
    shorter = random_tokens(2, matching.kept.shape[1], seed=1)
    full = unmerge_by_copy(shorter, matching)
    for sample in range(2):
        for position, group in enumerate(groups_of(matching, sample)):
            assert torch.equal(full[sample][group], shorter[sample, position].expand(len(group), -1))


def test_mlerp_has_the_direction_of_the_mean_and_the_length_of_the_longest():
    tokens = random_tokens(2, 36)
    matching = matched(tokens, (6, 6))
    merged = merge_by_mlerp(tokens, matching)
    for sample in range(2):
        for position, group in enumerate(groups_of(matching, sample)):
            members = tokens[sample][group]
            expected = torch.nn.functional.normalize(members.mean(dim=0), dim=0) * members.norm(dim=1).max()
            torch.testing.assert_close(merged[sample, position], expected)


def test_mlerp_of_tokens_that_cancel_is_zero_and_not_nan():
    tokens = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    matching = match_tokens(unit_tokens(tokens), torch.tensor([1]), torch.tensor([0]), 1)
    assert torch.equal(merge_by_mlerp(tokens, matching), torch.zeros(1, 1, 2))


@pytest.mark.parametrize("merge", [merge_by_mean, merge_by_mlerp, merge_by_pruning])
def test_equal_tokens_come_back_as_they_were(merge):
    tokens = torch.tensor([0.5, -2.0, 3.0]).expand(2, 30, 3)
    matching = matched(tokens, (5, 6))
    torch.testing.assert_close(unmerge_by_copy(merge(tokens, matching), matching), tokens)


@pytest.mark.parametrize("merge", [merge_by_mean, merge_by_mlerp, merge_by_pruning])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite_and_in_its_type(merge, dtype):
    tokens = torch.full((1, 36, 2), 30_000.0).to(dtype)
    merged = merge(tokens, matched(tokens, (6, 6), merged=27))
    assert merged.dtype == dtype
    torch.testing.assert_close(merged.float(), torch.full((1, 9, 2), 30_000.0), rtol=0.01, atol=0)


def test_nothing_left_over_when_every_source_is_merged():
    tokens = random_tokens(1, 16)
    matching = matched(tokens, (4, 4), merged=12)
    assert matching.kept.tolist() == [[0, 2, 8, 10]]
    assert matching.mass.sum() == 16


def test_one_for_batch_matches_by_the_sum_of_similarities():
    tokens = random_tokens(3, 36)
    sources, destinations = split_tokens((6, 6), (2, 2), 1, None, CPU)
    matching = match_tokens(unit_tokens(tokens), sources, destinations, 10, one_for_batch=True)
    assert all(torch.equal(matching.place[0], place) for place in matching.place)
    assert all(torch.equal(matching.kept[0], kept) for kept in matching.kept)
    # Samples side by side in one long unit token have the same sums of similarities, up to a common factor.
    joined = unit_tokens(tokens).transpose(0, 1).reshape(1, 36, -1)
    alone = match_tokens(joined, sources, destinations, 10)
    assert torch.equal(alone.place[0], matching.place[0])


@pytest.mark.parametrize("one_for_batch", [False, True])
def test_large_images_are_matched_piece_by_piece_with_the_same_result(monkeypatch, one_for_batch):
    tokens = random_tokens(2, 100)
    whole = matched(tokens, (10, 10), one_for_batch=one_for_batch)
    monkeypatch.setattr("tokenmerge.ops.bipartite.MOST_SCORES", 500)
    pieces = matched(tokens, (10, 10), one_for_batch=one_for_batch)
    assert torch.equal(whole.place, pieces.place)


def test_gradients_flow_through_merge_and_unmerge():
    tokens = random_tokens(2, 16).requires_grad_()
    with torch.no_grad():
        matching = matched(tokens, (4, 4))
    unmerge_by_copy(merge_by_mean(tokens, matching), matching).sum().backward()
    # Every token's share of a mean comes back as often as the mean was copied: once altogether.
    torch.testing.assert_close(tokens.grad, torch.ones_like(tokens))
