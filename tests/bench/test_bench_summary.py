import pytest
from made_results import TEN, model_result

from tokenmerge.bench.result import Measurement
from tokenmerge.bench.summary import removed_share, summarise


def test_figures_agree_with_those_worked_out_by_hand() -> None:
    none, limit, package, toma = summarise(model_result().measurements)

    assert (none.best.mean, none.best.speedup, none.best.removed) == (8.0, 1.0, 0.0)
    assert (none.median.mean, limit.median.mean) == (9.0, 4.5)
    assert (limit.best.speedup, limit.best.removed) == (2.0, 1.0)
    assert package.best.speedup == pytest.approx(1.25)
    assert package.best.removed == pytest.approx(0.4)  # 1.6 s of 4 s
    # Best: 8 + 8 * 5 + 7 = 55 s in ten steps. Median: 9 + 8 * 6 + 8 = 65 s.
    assert toma.best.mean == pytest.approx(5.5)
    assert toma.best.speedup == pytest.approx(8 / 5.5)
    assert toma.best.removed == pytest.approx(2.5 / 4)
    assert toma.median.mean == pytest.approx(6.5)
    assert toma.median.speedup == pytest.approx(9 / 6.5)
    assert toma.best.steps == {"select": 8.0, "steady": 5.0, "weights": 7.0}
    assert toma.multiply_adds == pytest.approx(415)  # 500 + 8 * 400 + 450 in ten


def test_share_of_removable_time() -> None:
    assert removed_share(plain=10, method=10, limit=2) == 0
    assert removed_share(plain=10, method=2, limit=2) == 1
    assert removed_share(plain=10, method=12, limit=2) == -0.25


def test_there_is_no_share_without_a_limit_or_below_it() -> None:
    result = model_result()
    without = [each for each in result.measurements if each.method != "blocks-deleted"]
    assert summarise(without)[-1].best.removed is None
    result.measurements[1].times["steady"] = [99.0]  # noise made deleting blocks slower
    assert summarise(result.measurements)[-1].best.removed is None


def test_what_was_not_measured_has_no_row() -> None:
    result = model_result()
    result.measurements.append(Measurement("toma", 0.75, schedule=TEN))
    assert [row.measurement.ratio for row in summarise(result.measurements)] == [None, None, 0.5, 0.5]


def test_overhead_is_a_share_of_the_same_repeat() -> None:
    measurement = Measurement(
        "toma",
        0.5,
        schedule=TEN,
        times={"select": [4.0, 40.0], "steady": [1.0, 10.0], "weights": [2.0, 20.0]},
        overhead={"select": [3.0, 30.0], "steady": [0.1, 1.0], "weights": [1.0, 10.0]},
    )
    (row,) = summarise([measurement])
    assert row.overhead == pytest.approx(4.8 / 14)  # in both repeats, though one was ten times slower


def test_what_a_method_takes_over_the_lower_bound_is_compared_within_a_repeat() -> None:
    def measured(method: str, ratio: float, *seconds: float) -> Measurement:
        return Measurement(method, ratio, schedule={"steady": 1}, times={"steady": list(seconds)})

    toma, bound, alone = summarise(
        [
            measured("toma", 0.5, 1.1, 10.5, 2.06),  # 10 %, 5 % and 3 % more, though times differ tenfold
            measured("lower-bound", 0.5, 1.0, 10.0, 2.0),
            measured("toma", 0.75, 1.0, 1.0, 1.0),
        ]
    )
    assert toma.over_bound == pytest.approx(0.05)
    assert bound.over_bound is None
    assert alone.over_bound is None  # there is no lower bound at its ratio
