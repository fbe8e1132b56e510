"""The kinds of step a method has, and what one step costs on average over its schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.describe import policy_of
from tokenmerge.engine.schedule import count_steps


@dataclass(frozen=True)
class Schedule:
    """How often each kind of step comes in one cycle, in the order in which a fresh generation meets them.

    "select" makes destinations and weights, "whole" merges nothing, "steady" makes nothing, "weights" makes weights for
    destinations it has.
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

    Where full steps run merged as well, plans are made there, and besides only at the first step of all.

    >>> from tokenmerge import ToMA
    >>> dict(schedule_of(ToMA.paper()).counts)
    {'select': 1, 'steady': 8, 'weights': 1}
    >>> dict(schedule_of(ToMA()).counts)
    {'select': 0, 'whole': 1, 'steady': 5}
    """
    counted = count_steps(dataclasses.replace(policy_of(config), merge_every=1), steps=None)
    counts = {
        "select": counted.select,
        "whole": counted.full,
        "steady": counted.steady,
        "weights": counted.weights,
    }
    cycles = math.gcd(*counts.values())
    # With full steps destinations are selected at the very first step, which is not counted.
    met = [phase for phase, count in counts.items() if count or (phase == "select" and counted.full)]
    return Schedule({phase: counts[phase] // cycles for phase in met})


def shortened(config: MergeConfig) -> MergeConfig:
    """The same method on a schedule so short that the first steps are one of each kind, in `phases` order.

    A step costs what its kind costs, however many lie between two of a kind: no step need be run only to reach one.
    """
    select_every, weights_every = config.refresh_every
    before = sum(phase in schedule_of(config).counts for phase in ("select", "whole", "steady"))
    short: dict[str, int] = {}
    if 1 < weights_every < select_every:
        short |= {"select_every": 2 * before, "weights_every": before}
    elif select_every == 2:  # too soon, where the second step is whole
        short |= {name: 4 for name in ("select_every", "weights_every") if getattr(config, name, 0) == 2}
    return config.with_detail(4 if config.whole_every else 0, **short)  # whole is the second step, and none soon again
