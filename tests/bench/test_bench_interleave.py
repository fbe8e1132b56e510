import pytest

from tokenmerge.bench.interleave import interleave
from tokenmerge.bench.result import Measurement


class Recorder:
    """A trial that only writes down when it had its turn."""

    def __init__(self, method: str, order: list[str], fails_at: int = -1, error: type[BaseException] = OSError) -> None:
        self.measurement = Measurement(method)
        self.order = order
        self.fails_at = fails_at
        self.error = error

    def visit(self) -> None:
        if self.measurement.repeats == self.fails_at:
            raise self.error
        self.order.append(self.measurement.method)
        self.measurement.add({"steady": 1.0}, {})


def test_every_trial_has_its_turn_in_every_repeat() -> None:
    order: list[str] = []
    saved: list[int] = []
    finished = interleave([Recorder(name, order) for name in "abc"], 3, lambda: saved.append(len(order)))
    assert finished
    assert "".join(order) == "abcabcabc"
    assert saved[:3] == [3, 6, 9]


def test_continues_with_what_an_earlier_run_lacks() -> None:
    order: list[str] = []
    trials = [Recorder(name, order) for name in "abc"]
    for trial, repeats in zip(trials, (2, 2, 1), strict=True):
        for _ in range(repeats):
            trial.measurement.add({"steady": 2.0}, {})
    interleave(trials, 3, lambda: None)
    assert "".join(order) == "cabc"
    assert [trial.measurement.repeats for trial in trials] == [3, 3, 3]


def test_an_interrupt_keeps_what_was_measured() -> None:
    order: list[str] = []
    trials = [Recorder("a", order), Recorder("b", order, fails_at=1, error=KeyboardInterrupt)]
    saved: list[tuple[int, ...]] = []
    finished = interleave(trials, 5, lambda: saved.append(tuple(trial.measurement.repeats for trial in trials)))
    assert not finished
    assert saved[-1] == (2, 1)


def test_an_error_keeps_it_too_and_is_not_swallowed() -> None:
    order: list[str] = []
    trials = [Recorder("a", order), Recorder("b", order, fails_at=1)]
    saved: list[int] = []
    with pytest.raises(OSError):  # noqa: PT011
        interleave(trials, 5, lambda: saved.append(len(order)))
    assert saved[-1] == 3
