import itertools
from typing import Any

import pytest
from torch import nn

from tokenmerge import FullSteps, LowerBound, TileMean, ToMA
from tokenmerge.api import merged
from tokenmerge.bench.schedule import EVERY_STEP_ALIKE, Schedule, schedule_of, shortened
from tokenmerge.bench.subject import Subject
from tokenmerge.engine.session import session_of


@pytest.mark.parametrize(
    ("select_every", "every", "counts"),
    [
        ((10, 5), 0, {"select": 1, "steady": 8, "weights": 1}),
        ((12, 3), 0, {"select": 1, "steady": 8, "weights": 3}),
        (10, 0, {"select": 1, "steady": 9}),
        ((4, 1), 0, {"select": 1, "weights": 3}),
        (1, 0, {"select": 1}),
        ((10, 5), 4, {"full": 1, "steady": 3}),
        (1, 3, {"full": 1, "steady": 2}),
    ],
)
def test_counts_steps_of_each_kind_in_a_cycle(select_every: Any, every: int, counts: dict[str, int]) -> None:
    """With a correction, plans are made in the merged run of full steps."""
    schedule = schedule_of(corrected(ToMA, every, select_every=select_every))
    assert schedule.counts == counts
    assert schedule.counts.get("full", 0) / schedule.length == pytest.approx(1 / every if every else 0)


def corrected(method: type[ToMA], every: int, **options: Any) -> ToMA:
    return method(correction=FullSteps(every=every, within=None) if every else None, **options)


def test_a_shortened_schedule_has_no_full_step_among_its_large_ones() -> None:
    assert shortened(ToMA(correction=FullSteps(every=8, within=0.1))).correction == FullSteps(every=4, within=None)


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
    for select_every, every in itertools.product(intervals, [0, 2, 3, 7]):
        method, ratio = next(turns)
        config = corrected(method, every, ratio=ratio, select_every=select_every)
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
            full = root.full_calls > before[2]
            met.append("full" if full else "select" if selected else "weights" if weighted else "steady")
    return tuple(met)


def test_going_back_to_step_0_starts_a_generation(subject: Subject, unet: nn.Module) -> None:
    with merged(unet, TileMean()):
        root = session_of(unet)
        assert root is not None
        for step in (2, 0, 1):
            subject.call(step)
        assert root.steps.schedule.number == 1
