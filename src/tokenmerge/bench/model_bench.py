"""`tokenmerge bench`: whole models, every method in turn on one model object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenmerge.bench.blocks import observe_blocks
from tokenmerge.bench.compiled import Compile, compiled, graphs_compiled
from tokenmerge.bench.contenders import Contender, contenders
from tokenmerge.bench.cost import multiply_adds, peak_memory, shadow_of
from tokenmerge.bench.result import Measurement
from tokenmerge.bench.subject import Subject
from tokenmerge.errors import TokenMergeError
from tokenmerge.runtime.timing import Clock


class ModelTrial:
    """One contender's turns."""

    def __init__(self, subject: Subject, contender: Contender, measurement: Measurement, how: Compile | None) -> None:
        self.subject = subject
        self.contender = contender
        self.measurement = measurement
        self._compile = how
        self._clock = Clock(subject.device)
        self._visited = False

    def visit(self) -> None:
        phases = self.contender.schedule.phases
        with self.contender.installed(self.subject), compiled(self.subject, self._compile):
            self._warm(len(phases))
            times = {
                # Step 0 has the largest timestep of all, so it begins a generation and finds no plan.
                phase: self._clock.seconds(lambda step=step: self.subject.call(step))  # type: ignore[misc]
                for step, phase in enumerate(phases)
            }
            if self._compile is not None:
                self.measurement.settings["graphs_compiled"] = graphs_compiled()
        self.measurement.add(times, {})

    def _warm(self, phases: int) -> None:
        """Run untimed where that makes a difference: the first time, on accelerators, and to compile.

        A CPU keeps nothing from one forward of a large model to the next.
        """
        on_cpu = self.subject.device.type == "cpu"
        if not on_cpu or self._compile is not None:
            for step in range(1, phases + 1):
                self.subject.call(step)
        if self._compile is not None:
            # The second generation of images is the first to forget a plan, which may need further graphs.
            for step in range(phases):
                self.subject.call(step)
        if not self._visited and (self._compile is None or not on_cpu):
            # What a full step leaves behind is in use at the next.
            steps = range(1, 1 + (phases if "full" in self.contender.schedule.phases else 1))
            self.measurement.peak_memory = peak_memory(
                self.subject.device, lambda: [self.subject.call(step) for step in steps]
            )
        self._visited = True


def model_trials(
    subject: Subject,
    methods: Sequence[str],
    ratios: Sequence[float],
    *,
    options: Mapping[str, Any] | None = None,
    limit: bool = True,
    how: Compile | None = None,
    earlier: Sequence[Measurement] = (),
) -> list[ModelTrial]:
    """A trial for each method and ratio. Multiply-adds are counted here, which also finds out what cannot run."""
    seen = observe_blocks(subject.model, subject.family, lambda: subject.call(0))
    shadow = shadow_of(subject)
    known = {measurement.key: measurement for measurement in earlier}
    trials = []
    for contender in contenders(methods, ratios, subject, seen, limit, options):
        measurement = Measurement(
            contender.method,
            contender.ratio,
            settings=contender.settings(),
            schedule=dict(contender.schedule.counts),
        )
        measurement = known.get(measurement.key, measurement)
        if measurement.multiply_adds is None:
            _count(shadow, contender, measurement)
        trials.append(ModelTrial(subject, contender, measurement, how))
    return trials


def _count(shadow: Subject, contender: Contender, measurement: Measurement) -> None:
    try:
        measurement.multiply_adds = multiply_adds(shadow, contender)
    except TokenMergeError:
        raise  # what cannot be merged without weights cannot be merged with them
    except Exception as error:  # a model of the user's own need not run on the meta device
        measurement.notes.append(f"multiply-adds were not counted: {type(error).__name__}: {error}")
