import itertools
import math

import pytest
from torch import nn

from tokenmerge import LowerBound, ToMA
from tokenmerge.api import merged
from tokenmerge.bench.schedule import EVERY_STEP_ALIKE, Schedule, schedule_of, shortened
from tokenmerge.bench.subject import Subject
from tokenmerge.engine.session import session_of


@pytest.mark.parametrize(
    ("select_every", "weights_every", "detail_every", "counts"),
    [
        (10, 5, 0, {"select": 1, "steady": 8, "weights": 1}),
        (12, 3, 0, {"select": 1, "steady": 8, "weights": 3}),
        (10, 10, 0, {"select": 1, "steady": 9}),
        (4, 1, 0, {"select": 1, "weights": 3}),
        (1, 1, 0, {"select": 1}),
        (10, 5, 4, {"select": 0, "whole": 1, "steady": 3}),
        (1, 1, 3, {"select": 0, "whole": 1, "steady": 2}),
    ],
)
def test_counts_steps_of_each_kind_in_a_cycle(
    select_every: int, weights_every: int, detail_every: int, counts: dict[str, int]
) -> None:
    config = ToMA(ratio=0.5, select_every=select_every, weights_every=weights_every, detail_every=detail_every)
    schedule = schedule_of(config)
    assert schedule.counts == counts
    whole = 1 / config.whole_every if config.whole_every else 0
    assert schedule.counts.get("whole", 0) / schedule.length == pytest.approx(whole)


@pytest.mark.parametrize("detail_every", [2, 4])
def test_whole_steps_that_run_merged_as_well_make_all_plans_but_the_first(detail_every: int) -> None:
    schedule = schedule_of(ToMA(ratio=0.875, detail_every=detail_every))
    assert schedule.counts == {"select": 0, "whole": 1, "steady": detail_every - 1}
    assert schedule.length == detail_every


def test_a_shortened_schedule_has_large_steps_without_whole_ones_among_them() -> None:
    short = shortened(ToMA(detail_every=8, detail_within=0.1))
    assert (short.whole_every, short.whole_within) == (4, math.inf)


def test_amortises_by_hand_computed_numbers() -> None:
    # One step of 5 s, eight of 2 s, one of 3 s: 24 s in ten steps.
    assert Schedule({"select": 1, "steady": 8, "weights": 1}).amortised(
        {"select": 5.0, "steady": 2.0, "weights": 3.0}
    ) == pytest.approx(2.4)
    assert EVERY_STEP_ALIKE.amortised({"steady": 7.0}) == 7.0


def test_first_steps_of_a_shortened_schedule_are_one_of_each_kind(subject: Subject) -> None:
    """Every interval with every number of full steps; methods and ratios take turns."""
    intervals = [(10, 5), (12, 3), (10, 10), (4, 1), (2, 2), (2, 1), (1, 1)]
    turns = itertools.cycle([(ToMA, 0.5), (LowerBound, 0.875), (ToMA, 0.875), (LowerBound, 0.5)])
    for (select_every, weights_every), detail_every in itertools.product(intervals, [0, 2, 3, 7]):
        method, ratio = next(turns)
        config = method(ratio=ratio, select_every=select_every, weights_every=weights_every, detail_every=detail_every)
        assert met_by(subject, config) == schedule_of(config).phases, config


def met_by(subject: Subject, config: ToMA) -> tuple[str, ...]:
    """The kinds of step that the first calls of a model run through."""
    met = []
    with merged(subject.model, shortened(config)):
        root = session_of(subject.model)
        assert root is not None
        for step in range(len(schedule_of(config).phases)):
            before = root.selections, root.weightings, root.full_calls
            subject.call(step)
            selected, weighted = root.selections > before[0], root.weightings > before[1]
            whole = root.full_calls > before[2]
            met.append("whole" if whole else "select" if selected else "weights" if weighted else "steady")
    return tuple(met)


def test_going_back_to_step_0_starts_a_generation(subject: Subject, unet: nn.Module) -> None:
    with merged(unet, ToMA()):
        root = session_of(unet)
        assert root is not None
        for step in (2, 0, 1):
            subject.call(step)
        assert root.schedule.number == 1
