"""Predicts seconds and speed-ups of whole generations: the kernels of each kind of step, times how often it comes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from tokenmerge.accelerations.base import require_package
from tokenmerge.accelerations.tomesd_package import check_package_ratio, patched, reaching_downsample, why_not
from tokenmerge.bench.blocks import observe_blocks
from tokenmerge.bench.subject import Subject, placed, subject_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.schedule import Kind, Step, steps_of
from tokenmerge.engine.session import Session
from tokenmerge.errors import ConfigError, NothingMergedWarning
from tokenmerge.models import family_of
from tokenmerge.ops.weighted_keys import as_on_gpu
from tokenmerge.simulate.devices import Device
from tokenmerge.simulate.recording import Kernel, Work, record
from tokenmerge.simulate.timing import device_seconds, eager_seconds

# Their guidance is built in, so a step is one call with one row; elsewhere guidance doubles the batch.
GUIDANCE_BUILT_IN = ("Flux", "Chroma")


@dataclass(frozen=True)
class Generation:
    """The kernels of one generation: those of each distinct step, and how many steps are like it."""

    name: str
    steps: tuple[tuple[int, tuple[Kernel, ...]], ...]

    @property
    def multiply_adds(self) -> int:
        return sum(count * sum(kernel.flops for kernel in kernels) for count, kernels in self.steps) // 2

    @property
    def launches(self) -> float:
        """Kernels a step, on average."""
        return sum(count * len(kernels) for count, kernels in self.steps) / sum(count for count, _ in self.steps)

    @property
    def masked(self) -> bool:
        """Whether attention has a mask, which keeps it from the flash kernel."""
        return any(kernel.work is Work.MASKED_ATTENTION for _, kernels in self.steps for kernel in kernels)

    def seconds(self, of_a_step: Callable[[Sequence[Kernel]], float]) -> float:
        return sum(count * of_a_step(kernels) for count, kernels in self.steps)


@dataclass(frozen=True)
class Prediction:
    """What one method would take on one device. Simulated, not measured."""

    method: str
    device: str
    eager_seconds: float
    graph_seconds: float
    eager_speedup: float
    graph_speedup: float
    multiply_adds_saved: float
    launches: float
    masked: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def default_batch(model: nn.Module) -> int:
    """Rows of a call for one image: two with guidance."""
    return 1 if type(model).__name__.startswith(GUIDANCE_BUILT_IN) else 2


def subject_for(model: nn.Module, size: tuple[int, int], batch: int) -> Subject:
    """A model on the meta device in half precision, with its inputs."""
    return subject_of(placed(model, torch.device("meta"), torch.bfloat16), size, batch)


def unmerged(subject: Subject, steps: int, name: str = "unmerged") -> Generation:
    """The model as it is, with as many steps."""
    return Generation(name, ((steps, tuple(record(lambda: subject.call(0)))),))


def fewer_steps(whole: Generation, share: float) -> Generation:
    """The same with a share of the steps: what anyone can do without a library."""
    ((steps, kernels),) = whole.steps
    return Generation(f"{share:g} of the steps", ((max(1, round(steps * share)), kernels),))


def merged(subject: Subject, config: MergeConfig, steps: int, name: str) -> Generation:
    """A method of tokenmerge over a generation of evenly spaced steps."""
    with _attached(subject, config) as session:
        kinds = Counter(_without_number(step) for step in steps_of(session.steps.policy, steps))

        def run(step: Step) -> tuple[Kernel, ...]:
            if step.kind is Kind.SKIPPED:
                return _forecast(subject)
            session.steps.forced = step
            return tuple(record(lambda: subject.call(0)))

        # The first one makes what the others read.
        run(Step(0, Kind.CALIBRATE if session.steps.policy.full_every else Kind.MERGED, True, True))
        return Generation(name, tuple((count, run(step)) for step, count in kinds.items()))


def tomesd_package(subject: Subject, steps: int, ratio: float = 0.5) -> Generation:
    """The tomesd package, which matches tokens in every block of every step."""
    require_package("tomesd", "tomesd")
    check_package_ratio(ratio)
    reason = why_not(subject.model)
    if reason is not None:
        raise ConfigError(f"the tomesd package cannot be simulated here: {reason}.")
    height, width = next(iter(subject.inputs.values())).shape[-2:]
    seen = observe_blocks(subject.model, subject.family, lambda: subject.call(0))
    with patched(subject.model, ratio, reaching_downsample(height * width, (block.tokens for block in seen.values()))):
        return unmerged(subject, steps, f"tomesd package {ratio:g}")


def predict(generations: Sequence[Generation], devices: Mapping[str, Device]) -> list[Prediction]:
    """Every generation on every device; the first is what the others are compared with."""
    return [_predict(generation, generations[0], device) for device in devices.values() for generation in generations]


def _predict(generation: Generation, base: Generation, device: Device) -> Prediction:
    def eager(kernels: Sequence[Kernel]) -> float:
        return eager_seconds(kernels, device)

    def graph(kernels: Sequence[Kernel]) -> float:
        return device_seconds(kernels, device)

    return Prediction(
        method=generation.name,
        device=device.name,
        eager_seconds=generation.seconds(eager),
        graph_seconds=generation.seconds(graph),
        eager_speedup=base.seconds(eager) / generation.seconds(eager),
        graph_speedup=base.seconds(graph) / generation.seconds(graph),
        multiply_adds_saved=base.multiply_adds / generation.multiply_adds,
        launches=generation.launches,
        masked=generation.masked,
    )


def _forecast(subject: Subject) -> tuple[Kernel, ...]:
    """The kernels of a skipped step: a weighted sum of two stored outputs."""
    output = torch.empty_like(next(iter(subject.inputs.values())))
    return tuple(record(lambda: (output * 2.0).add(output, alpha=-1.0)))


@contextmanager
def _attached(subject: Subject, config: MergeConfig) -> Iterator[Session]:
    session = Session(subject.model, family_of(subject.model), config)
    session.attach()
    try:
        with as_on_gpu("meta"):
            yield session
    finally:
        with warnings.catch_warnings():
            # Recorded steps are no image: that all of them were full says nothing.
            warnings.simplefilter("ignore", NothingMergedWarning)
            session.detach()


def _without_number(step: Step) -> Step:
    """The step as one of its kind: what is due decides its kernels, not when it comes."""
    return Step(1, step.kind, step.select, step.weights)
