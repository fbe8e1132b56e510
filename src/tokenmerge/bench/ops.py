"""`tokenmerge bench ops`: selection, merge and unmerge alone, against the tomesd package (ToMA, Tables 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tokenmerge.bench.contenders import PACKAGE
from tokenmerge.bench.result import Measurement
from tokenmerge.config.interfaces import BlockContext
from tokenmerge.errors import UsageError
from tokenmerge.methods.toma import ToMA
from tokenmerge.runtime.timing import Clock

VARIANTS: dict[str, Callable[[float], ToMA]] = {
    "toma tile 4x4": lambda ratio: ToMA(ratio=ratio, tile=(4, 4)),
    "toma tile 8x8": lambda ratio: ToMA(ratio=ratio, tile=(8, 8)),
    "toma stripe": ToMA.paper_stripe,
    "toma global": ToMA.paper,
}
Operations = dict[str, Callable[[], object]]


class OperationsTrial:
    """One method's operations on one set of tokens."""

    def __init__(self, operations: Operations, measurement: Measurement, clock: Clock) -> None:
        self.operations = operations
        self.measurement = measurement
        self._clock = clock
        self._calls: dict[str, int] = {}

    def visit(self) -> None:
        times = {}
        for name, operation in self.operations.items():
            if name not in self._calls:
                self._calls[name] = self._clock.calls_to_time(operation)
            times[name] = self._clock.mean_seconds(operation, self._calls[name])
        self.measurement.add(times, {})


def operation_trials(
    token_counts: Sequence[int],
    channels: Sequence[int],
    ratios: Sequence[float],
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    earlier: Sequence[Measurement] = (),
) -> list[OperationsTrial]:
    """A trial for each method at each size and ratio."""
    known = {measurement.key: measurement for measurement in earlier}
    clock = Clock(device)
    trials = []
    for count in token_counts:
        side = math.isqrt(count)
        if side * side != count:
            raise UsageError(f"--tokens has {count}, which is not a square: use squares such as 1024,4096.")
        for width in channels:
            tokens = _tokens(batch, count, width, device, dtype)
            for ratio in ratios:
                case = {"tokens": count, "channels": width}
                made = {PACKAGE: tomesd_operations(tokens, ratio)}
                made |= {name: toma_operations(tokens, make(ratio)) for name, make in VARIANTS.items()}
                for method, operations in made.items():
                    measurement = Measurement(method, ratio, case)
                    if method in VARIANTS:
                        measurement.settings = VARIANTS[method](ratio).to_dict()
                    trials.append(OperationsTrial(operations, known.get(measurement.key, measurement), clock))
    return trials


def toma_operations(tokens: Tensor, config: ToMA) -> Operations:
    """What ToMA does at a site, each operation alone: tokens come in region order there, as they do inside a model."""
    side = math.isqrt(tokens.shape[1])
    layout = config.layout((side, side))
    assert layout.regions is not None
    regions = layout.regions.to(tokens.device)
    context = BlockContext("benchmark", 0, 1, in_region_order=not regions.is_identity and not regions.padded)
    with torch.no_grad():
        planned = config.plan(tokens, layout, context, None)
        operator = planned.queries
        assert operator is not None
        merged = operator.merge(tokens)
    operations: Operations = {
        "select": lambda: config.plan(tokens, layout, context, None),  # with its weights: a step that selects
        "weights": lambda: config.plan(tokens, layout, context, planned),
        "merge": lambda: operator.merge(tokens),
        "unmerge": lambda: operator.unmerge(merged),
    }
    if context.in_region_order:
        # Into region order and back, which a stack of blocks does once.
        operations["reorder"] = lambda: regions.scatter(regions.gather(tokens))
    return {name: torch.no_grad()(operation) for name, operation in operations.items()}


def tomesd_operations(tokens: Tensor, ratio: float) -> Operations:
    """What the tomesd package does at a site: its matching counts as selection."""
    from tomesd.merge import bipartite_soft_matching_random2d

    side = math.isqrt(tokens.shape[1])
    generator = torch.Generator(tokens.device if tokens.device.type == "cuda" else "cpu").manual_seed(0)

    def match() -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        fewer = int(tokens.shape[1] * ratio)
        merge, unmerge = bipartite_soft_matching_random2d(tokens, side, side, 2, 2, fewer, generator=generator)
        return merge, unmerge

    with torch.no_grad():
        merge, unmerge = match()
        merged = merge(tokens)
    operations: Operations = {"select": match, "merge": lambda: merge(tokens), "unmerge": lambda: unmerge(merged)}
    return {name: torch.no_grad()(operation) for name, operation in operations.items()}


def _tokens(batch: int, count: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, count, channels, generator=generator).to(device, dtype)
