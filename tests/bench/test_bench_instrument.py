from typing import Any, cast

import pytest
import torch

from tokenmerge import TileMean, ToMA
from tokenmerge.api import merged
from tokenmerge.bench.instrument import TimedConfig
from tokenmerge.bench.one_block import OneBlockFamily, build_one_block
from tokenmerge.bench.scaling import scaling_trials
from tokenmerge.bench.subject import Subject
from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.session import Session
from tokenmerge.runtime.timing import Clock, Stopwatch

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "config",
    [ToMA(), ToMA(scope="stack"), ToMA.paper_block(), ToMA(keys="all")],
    ids=repr,
)
def test_a_stopwatch_changes_nothing_but_sees_every_merge(subject: Subject, config: ToMA) -> None:
    with merged(subject.model, config):
        expected = [subject.call(step).sample for step in range(6)]
    stopwatch = Stopwatch(CPU)
    timed: Any = TimedConfig(config, stopwatch)
    session = Session(subject.model, subject.family, cast(MergeConfig, timed))
    session.attach()
    laps = []
    for step, image in enumerate(expected):
        assert torch.equal(subject.call(step).sample, image)
        laps.append(stopwatch.read())
    session.detach()
    assert [("plan" in lap) for lap in laps] == [True, False, False, False, False, True]
    assert all({"merge", "unmerge"} <= lap.keys() for lap in laps)
    assert all(("reorder" in lap) == (config.region == "tile") for lap in laps)


def test_a_stopwatch_sees_full_steps_and_tile_means(subject: Subject) -> None:
    stopwatch = Stopwatch(CPU)
    timed: Any = TimedConfig(TileMean(), stopwatch)
    session = Session(subject.model, subject.family, cast(MergeConfig, timed))
    session.attach()
    laps = []
    for step in range(3):
        subject.call(step)
        laps.append(stopwatch.read())
    session.detach()
    assert all({"merge", "unmerge"} <= lap.keys() for lap in laps)  # the first step runs full, and then merged


def test_a_lap_within_a_lap_belongs_to_the_outer_one() -> None:
    stopwatch = Stopwatch(CPU)
    with stopwatch.lap("outer"), stopwatch.lap("inner"):
        pass
    with stopwatch.lap("inner"):
        pass
    assert stopwatch.read().keys() == {"outer", "inner"}
    with stopwatch.lap("outer"), stopwatch.lap("inner"):
        pass
    assert stopwatch.read().keys() == {"outer"}
    assert stopwatch.read() == {}


def test_scaling_measures_a_step_and_its_overhead_in_the_same_call() -> None:
    model = build_one_block(640, CPU, torch.float32)
    assert OneBlockFamily().recognises(model)
    trials = scaling_trials(model, [256], ("none", "tomesd-package", "toma"), [0.5], 1)
    for trial in trials:
        trial.visit()
    none, package, toma = (trial.measurement for trial in trials)
    assert none.case == package.case == toma.case == {"pixels": 256, "tokens": 256}
    assert none.overhead == package.overhead == {}
    assert toma.overhead.keys() == toma.times.keys() == {"select", "steady"}
    for phase, (seconds,) in toma.times.items():
        assert 0 < toma.overhead[phase][0] < seconds


def test_small_operations_are_timed_over_many_calls() -> None:
    calls = []
    clock = Clock(CPU)
    assert clock.calls_to_time(lambda: calls.append(1)) > 10
    assert len(calls) == 2
    assert clock.mean_seconds(lambda: calls.append(1), 7) > 0
    assert len(calls) == 9
