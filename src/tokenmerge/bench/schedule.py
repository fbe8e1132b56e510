"""The kinds of step a method has, and what one step costs on average over its schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.engine.describe import policy_of
from tokenmerge.engine.schedule import count_steps


@dataclass(frozen=True)
class Schedule:
    """How often each kind of step comes in one cycle, in the order in which a fresh generation meets them.

    "select" computes destinations and weights, "full" merges nothing, "steady" computes nothing, "weights" computes
    weights for destinations it has.
    """

    counts: Mapping[str, int]

    @property
    def phases(self) -> tuple[str, ...]:
        """The kinds of step, in the order in which the first steps of a generation run through them."""
        return tuple(self.counts)

    @property
    def length(self) -> int:
        """Steps in a cycle."""
        return sum(self.counts.values())

    def amortised(self, cost: Mapping[str, float]) -> float:
        """The mean cost of a step, from the cost of each kind.

        >>> Schedule({"select": 1, "steady": 8, "weights": 1}).amortised({"select": 3.0, "steady": 1.0, "weights": 2.0})
        1.3
        """
        return sum(count * cost[phase] for phase, count in self.counts.items()) / self.length


EVERY_STEP_ALIKE = Schedule({"steady": 1})


def schedule_of(config: MergeConfig) -> Schedule:
    """The schedule a config asks for. What is due at a full step is made at the next that merges.

    With a correction, plans are made in the merged run of full steps.

    >>> from tokenmerge import TileMean, ToMA
    >>> dict(schedule_of(ToMA.paper()).counts)
    {'select': 1, 'steady': 8, 'weights': 1}
    >>> dict(schedule_of(TileMean()).counts)
    {'full': 1, 'steady': 5}
    """
    counted = count_steps(dataclasses.replace(policy_of(config), merge_every=1), steps=None)
    counts = {
        "select": counted.select,
        "full": counted.full,
        "steady": counted.steady,
        "weights": counted.weights,
    }
    cycles = math.gcd(*counts.values())
    return Schedule({phase: count // cycles for phase, count in counts.items() if count})


def shortened(config: MergeConfig) -> MergeConfig:
    """The same method on a schedule so short that the first steps are one of each kind, in `phases` order.

    A step costs what its kind costs, however many lie between two of a kind: no step need be run only to reach one.
    """
    if config.correction is not None:
        return dataclasses.replace(config, correction=FullSteps(every=4, within=None))
    select, weights = config.refresh_every
    if not 1 < weights < select:
        return config
    before = sum(phase in schedule_of(config).counts for phase in ("select", "steady"))
    return dataclasses.replace(config, select_every=(2 * before, before))  # type: ignore[call-arg]
