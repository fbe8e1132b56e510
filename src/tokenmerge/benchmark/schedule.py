"""The kinds of step a method has, and what one step costs on average over its schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tokenmerge.config import MergeConfig


@dataclass(frozen=True)
class Schedule:
    """How often each kind of step comes in one cycle, in the order in which a fresh generation meets them.

    "select" makes destinations and weights, "weights" makes weights for destinations it has, "steady" makes nothing.
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
    """The schedule a config asks for.

    >>> from tokenmerge import ToMA
    >>> dict(schedule_of(ToMA(select_every=10, weights_every=5)).counts)
    {'select': 1, 'steady': 8, 'weights': 1}
    """
    select_every, weights_every = config.refresh_every
    weights_only = select_every // weights_every - 1
    counts = {"select": 1, "steady": select_every - 1 - weights_only, "weights": weights_only}
    return Schedule({phase: count for phase, count in counts.items() if count})


def shortened(config: MergeConfig) -> MergeConfig:
    """The same method on a schedule so short that the first steps are one of each kind, in `phases` order.

    A step costs what its kind costs, however many lie between two of a kind: no step need be run only to reach one.
    """
    select_every, weights_every = config.refresh_every
    if not 1 < weights_every < select_every:
        return config  # the first two steps are of both kinds already
    return dataclasses.replace(config, select_every=4, weights_every=2)  # type: ignore[call-arg]
