"""How many destinations a step shares with the first step of its interval, per layer (paper Fig. 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from tokenmerge.api import denoisers_of, merged
from tokenmerge.config.base import Share
from tokenmerge.eval.figures.clusters import short_name
from tokenmerge.eval.figures.plotting import COLOURS, new_figure, styled, to_svg
from tokenmerge.methods.toma import ToMA
from tokenmerge.models import family_of
from tokenmerge.ops.selection import SELECTORS

INTERVAL = 10


@dataclass(frozen=True, kw_only=True)
class _EachLayer(ToMA):
    """ToMA with a selection for each block."""

    share: ClassVar[Share] = "layer"


# Destinations by block, then one entry per step: (batch, regions, destinations) places within their regions.
Selections = dict[str, list[Tensor]]


@contextmanager
def recorded_destinations(pipeline: Any, config: ToMA) -> Iterator[Selections]:
    """Merges with new destinations at every step and in every layer, and collects them.

    The selector is one of ToMA's options, so nothing inside the library is touched.
    """
    model = denoisers_of(pipeline)[0]
    selections: Selections = {}
    current = [""]

    def note(name: str) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            current[0] = name

        return enter

    selector = config.selector if callable(config.selector) else SELECTORS[config.selector]

    def recording(similarity: Tensor, count: int, available: Tensor) -> Tensor:
        chosen: Tensor = selector(similarity, count, available)
        selections.setdefault(current[0], []).append(chosen.cpu())
        return chosen

    # Registered before merging is applied: hooks run in the order they came. A stack may be merged before its first
    # block is entered.
    stacks = [stack for stack in family_of(model).stacks(model) if stack.blocks]
    entered = [(stack.owner, stack.blocks[0].name) for stack in stacks]
    entered += [(block.module, block.name) for stack in stacks for block in stack.blocks]
    handles = [module.register_forward_pre_hook(note(name)) for module, name in entered]
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(ToMA)}
    every_step = _EachLayer(**{**options, "selector": recording, "select_every": 1, "correction": None})
    try:
        with merged(pipeline, every_step):
            yield selections
    finally:
        for handle in handles:
            handle.remove()


def overlap(first: Tensor, other: Tensor) -> float:
    """Fraction of destinations that two steps share: (B, R, D) each, without repeats within a region."""
    return float((first.unsqueeze(-1) == other.unsqueeze(-2)).any(dim=-1).double().mean())


def overlaps(selections: Mapping[str, Sequence[Tensor]], interval: int = INTERVAL) -> dict[str, list[float]]:
    """By block, one value per step: 1 at the first step of each interval, by definition."""
    return {
        block: [overlap(steps[index - index % interval], chosen) for index, chosen in enumerate(steps)]
        for block, steps in selections.items()
    }


def plot_overlaps(values: Mapping[str, Sequence[float]]) -> str | None:
    if not values:
        return None
    with styled():
        figure = new_figure(7.5, 4)
        panel = figure.subplots()
        for index, (block, line) in enumerate(values.items()):
            colour = COLOURS[index % len(COLOURS)]
            panel.plot(
                range(1, len(line) + 1), [100 * v for v in line], label=short_name(block), color=colour, linewidth=1.3
            )
        panel.set_xlabel("denoising step")
        panel.set_ylabel(f"% shared with the first of its {INTERVAL} steps")
        panel.set_ylim(0, 102)
        panel.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(loc="outside right upper", fontsize=7)
        return to_svg(figure)
