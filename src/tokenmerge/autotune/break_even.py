"""Break-even: which levels and parts of a model merging makes faster on this machine, by timing a block each way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from tokenmerge.api import config_of, denoisers_of, merged
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_pixels, check_whole
from tokenmerge.engine.arguments import token_argument
from tokenmerge.engine.compatibility import suited
from tokenmerge.engine.schedule import Kind, Step
from tokenmerge.engine.session import Session, session_of
from tokenmerge.engine.stack_run import StackRun
from tokenmerge.engine.state import Group
from tokenmerge.errors import ConfigError, NothingMergedError
from tokenmerge.models import family_of
from tokenmerge.models.arguments import Args, Kwargs
from tokenmerge.models.base import Block, Part
from tokenmerge.report.worthwhile import WHOLE, Timing, Worthwhile, table_of
from tokenmerge.runtime.timing import Clock

REPEATS = 5
# Of a block's time. A smaller saving is within the noise, and not worth the detail that merging costs.
LEAST_SAVING = 0.02
Ways = dict[str, Callable[[], object]]


@dataclass(frozen=True, eq=False)
class Level:
    """Blocks of one shape, and the arguments that the first of them is called with."""

    stack: StackRun  # of the block that is timed
    block: Block
    alike: list[Block]
    args: Args
    kwargs: Kwargs
    rows: list[tuple[Any, Any]]  # what acts on the block, each with its row

    @property
    def parts(self) -> list[Part]:
        """The parts that run on merged tokens."""
        names = self.stack.program.parts
        return [part for part in self.block.parts if self.block.path(part) in names]

    @property
    def group(self) -> Group:
        group: Group = self.rows[0][0].group
        return group

    def run(self, kinds: Iterable[str] | None, select: bool = False, weights: bool = False) -> None:
        """Call the block with the parts of these kinds merged; None runs it as if nothing had been applied."""
        for carrier, row in self.rows:
            part = getattr(row, "part", None)
            merges = kinds is not None and (part is None or set(part.kinds) <= set(kinds))
            carrier.row = row if merges else None
        self.group.current.select_due = select
        self.group.current.weights_due = select or weights
        self.block.module(*self.args, **self.kwargs)


def worthwhile(
    pipeline_or_model: Any,
    config: MergeConfig | str,
    size: tuple[int, int],
    batch: int = 1,
    clock: Clock | None = None,
) -> Worthwhile:
    """Find out where merging saves time on this machine, and leave the rest alone.

    One block of each level is timed unmerged and merged, and under scope="site" with each part merged alone. A part
    that saves nothing over all levels is taken out of `parts`; levels that still gain nothing go to `skip_blocks`. A
    block is timed as if it were alone in its stack, so a long stack does a little better than its row says.

    size: (height, width) of the image in pixels.
    batch: images at once, twice as many where guidance doubles them.
    clock: another measure than seconds on the model's device.

    >>> found = worthwhile(pipe, ToMA(ratio=0.5), size=(512, 512))  # doctest: +SKIP
    >>> handle = apply(pipe, found)  # doctest: +SKIP
    >>> print(handle.explain())  # with the times  # doctest: +SKIP
    """
    config = config_of(config, pipeline_or_model)
    check_pixels(size)
    check_whole("batch", batch, least=1)
    if config.varies:
        raise ConfigError(
            "what is worth merging is timed at one ratio: set ratio to one number to find out, and give the parts and "
            "skip_blocks that come out to your own config."
        )
    if not config.merges_tokens:
        raise ConfigError(
            f"{type(config).__name__} skips steps, so there is no block to time: use a method that merges "
            f"tokens, such as TileMean."
        )
    model = denoisers_of(pipeline_or_model)[0]  # a second one is of the same kind
    device = next(model.parameters()).device
    if device.type == "meta":
        raise ConfigError("the model is on the meta device, where nothing takes time: load it with its weights.")
    given = config
    config = suited(config, family_of(model).stacks(model))
    # A block by itself is a stack of one.
    per_block = config.with_scope("site" if config.merged_per == "site" else "block")
    with torch.no_grad(), merged(model, per_block), tqdm(desc="timing", unit="turn", delay=2, disable=None) as bar:
        session = session_of(model)
        assert session is not None
        levels = _levels(session, size, batch)
        measure = _Measure(clock or Clock(device), bar)
        kinds, rows = _kinds_that_pay(levels, config, measure)
        rows += [_whole(level, kinds, config, measure) for level in levels] if kinds else []
        timings = tuple(sorted(rows, key=lambda row: [level.stack.stack.name for level in levels].index(row.level)))
        losing = {row.level for row in timings if row.part == WHOLE and not row.worthwhile}
        if len(losing) == len(levels) or not kinds:
            raise NothingMergedError(
                f"merging saves no time here, so nothing would be merged:\n{table_of(timings)}\n"
                f"Use a larger image or a larger ratio, or run the model unmerged."
            )
        left_alone = {block.name for level in levels if level.stack.stack.name in losing for block in level.alike}
        return Worthwhile(_narrowed(given, kinds, left_alone, session), timings)


class _Measure:
    """Times several ways to run a block in turn, so that noise hits all alike, and takes the best of each."""

    def __init__(self, clock: Clock, bar: tqdm[Any]) -> None:
        self._clock = clock
        self._bar = bar

    def __call__(self, ways: Ways) -> dict[str, float]:
        calls = {name: self._clock.calls_to_time(way) for name, way in ways.items()}
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(REPEATS):
            for name, way in ways.items():
                best[name] = min(best[name], self._clock.mean_seconds(way, calls[name]))
                self._bar.update()
        return best


def _levels(session: Session, size: tuple[int, int], batch: int) -> list[Level]:
    """Run the model full, to note what the first block of each level is given, and merged, to have its plan."""
    seen: dict[str, tuple[Args, Kwargs]] = {}

    def hook(name: str) -> Callable[[nn.Module, Args, Kwargs], None]:
        return lambda module, args, kwargs: seen.update({name: (args, kwargs)})

    firsts = [(stack, stack.described.merging[0]) for stack in session.stacks if stack.described.merging]
    inputs = session.family.example_inputs(session.model, size, batch)
    handles = [block.module.register_forward_pre_hook(hook(block.name), with_kwargs=True) for _, block in firsts]
    try:
        # A full step, at which blocks are given all tokens.
        session.steps.forced = Step(0, Kind.FULL, select=True, weights=True)
        session.model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    session.steps.forced = Step(0, Kind.MERGED, select=True, weights=True)
    session.model(**inputs)
    found: dict[Hashable, Level] = {}
    for stack, block in firsts:
        if not stack.program.merges:
            continue
        stack.isolate()  # a block by itself, whatever its place in its stack
        level = Level(stack, block, list(stack.described.merging), *seen[block.name], stack.rows_of(block))
        tokens = token_argument(block).read(level.args, level.kwargs)
        key = stack.program.grid, type(block.module), tokens.shape[-1], tuple(part.module for part in level.parts)
        if key in found:
            found[key].alike.extend(level.alike)
        else:
            found[key] = level
    return list(found.values())


def _kinds_that_pay(
    levels: Sequence[Level], config: MergeConfig, measure: _Measure
) -> tuple[tuple[str, ...], list[Timing]]:
    """The parts that save time over all levels together, and what each saves by itself."""
    if config.merged_per != "site" or len(config.parts) == 1:
        return config.parts, []
    rows: list[Timing] = []
    saved = dict.fromkeys(config.parts, 0.0)
    total = 0.0
    for level in levels:
        alone = [kind for kind in config.parts if any(part.kinds == (kind,) for part in level.parts)]
        # In the order of regions already, which all parts share.
        ways: Ways = {"": lambda level=level: level.run(())}  # type: ignore[misc]
        ways |= {kind: lambda level=level, kind=kind: level.run((kind,)) for kind in alone}  # type: ignore[misc]
        best = measure(ways)
        total += best[""] * len(level.alike)
        for kind in alone:
            saved[kind] += (best[""] - best[kind]) * len(level.alike)
            rows.append(_timing(level, kind, best[""], best[kind]))
    inseparable = {kind for level in levels for part in level.parts if len(part.kinds) > 1 for kind in part.kinds}
    kinds = tuple(kind for kind in config.parts if kind in inseparable or saved[kind] > LEAST_SAVING * total)
    return kinds, [dataclasses.replace(row, worthwhile=row.part in kinds) for row in rows]


def _whole(level: Level, kinds: tuple[str, ...], config: MergeConfig, measure: _Measure) -> Timing:
    """A block as the model would run it, on average over the schedule."""
    best = measure(
        {
            "unmerged": lambda: level.run(None),
            "steady": lambda: level.run(kinds),
            "weights": lambda: level.run(kinds, weights=True),
            "select": lambda: level.run(kinds, select=True),
        }
    )
    select_every, weights_every = config.refresh_every
    reweighs = select_every // weights_every - 1
    refresh = max(0.0, best["select"] - best["steady"]) + reweighs * max(0.0, best["weights"] - best["steady"])
    sharing = len(level.alike) if config.share != "layer" else 1
    # A full step also runs merged. That time is taken from what the merged steps after it save.
    every = 0 if config.correction is None else config.correction.every
    runs = every / (every - 1) if every else 1
    return _timing(level, WHOLE, best["unmerged"], best["steady"] * runs + refresh / select_every / sharing)


def _timing(level: Level, part: str, unmerged: float, merged: float) -> Timing:
    pays = 1 - merged / unmerged > LEAST_SAVING
    return Timing(
        level.stack.stack.name,
        len(level.alike),
        math.prod(level.stack.program.grid),
        part,
        unmerged,
        merged,
        worthwhile=pays,
    )


def _narrowed(config: MergeConfig, kinds: tuple[str, ...], left_alone: set[str], session: Session) -> MergeConfig:
    """The config with what does not pay left alone."""
    if left_alone:
        merging = {block.name for stack in session.stacks for block in stack.described.merging} - left_alone
        names = [block.name for stack in session.stacks for block in stack.stack.blocks]
        config = dataclasses.replace(config, skip_blocks=_patterns(names, merging))
    return dataclasses.replace(config, parts=kinds)


def _patterns(names: Sequence[str], merging: set[str]) -> tuple[str, ...]:
    """Patterns for every block that does not merge: one for a list of blocks that all do not."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    patterns: list[str] = []
    for parent, blocks in groups.items():
        left = [name for name in blocks if name not in merging]
        patterns += [f"{parent}.*"] if len(left) == len(blocks) else left
    return tuple(patterns)
