"""Generates an image once more and notes what merging does in every block, at some of the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenmerge.config.interfaces import Operator
from tokenmerge.engine.arguments import split_pieces, token_argument
from tokenmerge.engine.placement import Placement
from tokenmerge.engine.schedule import Kind
from tokenmerge.engine.session import Session
from tokenmerge.engine.stack_run import StackRun
from tokenmerge.eval.figures.clusters import CLUSTERS, chosen, kmeans
from tokenmerge.eval.figures.overlap import overlaps, recorded_destinations
from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.toma import ToMA
from tokenmerge.models.base import Block
from tokenmerge.web.bounds import Request
from tokenmerge.web.stages import stages_of, timed_merging

if TYPE_CHECKING:
    from PIL.Image import Image

    from tokenmerge.web.runs import Studio, Watch

MOST_STEPS = 8
CHUNK = 512  # columns of a merge matrix that are made at a time


@dataclass(frozen=True)
class MergeView:
    """What one block merges at one step, in the last sample of the batch: with guidance, the prompt's own."""

    grid: tuple[int, int]
    operator: Operator
    batch: int
    order: Tensor | None  # (N,) which token of the grid stands at each place, where they do not stand in its order

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def kept(self) -> int:
        assert self.operator.destinations is not None
        return self.operator.destinations.shape[1]

    def destinations(self) -> NDArray[np.int64]:
        """(M,) the token of the grid at which each kept one sits."""
        assert self.operator.destinations is not None
        places = self.operator.destinations[-1].cpu()
        return np.asarray(places if self.order is None else self.order[places])

    def owners(self) -> NDArray[np.int64]:
        """(N,) by token of the grid, which of the kept ones it reads most from."""
        best = torch.full((self.tokens,), -torch.inf)
        owner = torch.zeros(self.tokens, dtype=torch.long)
        for begin, read in self._columns(self.operator.unmerge, self.kept):
            value, index = read.max(dim=1)
            better = value > best
            best = torch.where(better, value, best)
            owner = torch.where(better, index + begin, owner)
        return np.asarray(self._on_grid(owner))

    def reads(self, token: int) -> NDArray[np.float32]:
        """(M,) how much a token of the grid reads from each kept one."""
        place = self._place(token)
        rows = [read[place] for _, read in self._columns(self.operator.unmerge, self.kept)]
        return np.asarray(torch.cat(rows))

    def gathered(self, kept: int) -> NDArray[np.float32]:
        """(N,) by token of the grid, its weight in what a kept one is made of."""
        columns = [made[kept] for _, made in self._columns(self.operator.merge, self.tokens)]
        return np.asarray(self._on_grid(torch.cat(columns)))

    def _columns(self, change: Any, count: int) -> Iterator[tuple[int, Tensor]]:
        """The matrix by which tokens are changed, some columns at a time: what becomes of tokens that are 1 in one
        place. This way it does not matter how a method does it."""
        for begin in range(0, count, CHUNK):
            width = min(CHUNK, count - begin)
            ones = torch.zeros(count, width)
            ones[begin : begin + width] = torch.eye(width)
            device = self.operator.destinations.device if self.operator.destinations is not None else "cpu"
            yield begin, change(ones.to(device).expand(self.batch, -1, -1))[-1].float().cpu()

    def _place(self, token: int) -> int:
        return token if self.order is None else int((self.order == token).nonzero()[0])

    def _on_grid(self, by_place: Tensor) -> Tensor:
        if self.order is None:
            return by_place
        by_token = torch.empty_like(by_place)
        by_token[self.order] = by_place
        return by_token


@dataclass
class Recording:
    """What was seen while one image was generated."""

    request: Request
    image: Image
    stages: dict[str, dict[str, float]]  # seconds by stage, unmerged and merged
    views: dict[tuple[str, int], MergeView] = field(default_factory=dict)  # by block and step
    clusters: dict[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict)
    grids: dict[str, tuple[int, int]] = field(default_factory=dict)
    overlaps: dict[str, list[float]] = field(default_factory=dict)  # by block, one value a step
    no_overlaps: str = ""  # why there are none

    @property
    def blocks(self) -> list[str]:
        return list(dict.fromkeys(block for block, _ in self.views))

    @property
    def steps(self) -> list[int]:
        return sorted({step for _, step in self.views})


def record(studio: Studio, request: Request, watch: Watch) -> Recording:
    """Generate the image with every block watched; then again, with new destinations at each step, for the overlap."""
    with studio.alone(request.model, watch) as loaded:
        request = request.for_model(loaded.pipe)
        unmerged = studio.unmerged(request.model, request.image, watch.within(0, 0.3))
        with timed_merging(loaded, request.config) as (stopwatch, sessions):
            recorder = _Recorder(sessions[0], request.image.steps)
            with recorder.watching():
                image, seconds = studio.generate(loaded, request.image, "looking inside", watch.within(0.3, 0.65))
        stages = {
            "unmerged": stages_of(unmerged.parts, unmerged.seconds),
            "merged": stages_of(stopwatch.read(), seconds, recorder.overhead),
        }
        recording = Recording(request, image, stages, recorder.views, recorder.clusters, recorder.grids)
        config = request.config
        if isinstance(config, ToMA) and not (isinstance(config, LowerBound) or config.resamples):
            with recorded_destinations(loaded.pipe, config) as selections:
                studio.generate(loaded, request.image, "destinations of every step", watch.within(0.65, 1))
            recording.overlaps = overlaps(selections)
        else:
            recording.no_overlaps = (
                f"{type(config).__name__} with these settings does not select its destinations by looking at the "
                f"image, so there is nothing to follow over the steps. Choose one of the ToMA methods to see this."
            )
    return recording


class _Recorder:
    """Notes the operators in use and the clusters of the tokens, and how long the noting takes."""

    def __init__(self, session: Session, steps: int) -> None:
        self.session = session
        self.steps = set(chosen(steps, MOST_STEPS))
        self.views: dict[tuple[str, int], MergeView] = {}
        self.clusters: dict[tuple[str, int], NDArray[np.int64]] = {}
        self.grids: dict[str, tuple[int, int]] = {}
        self.overhead = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        handles = []
        for stack in self.session.stacks:
            for block in stack.described.merging:
                # Before the block's own hook tokens are all there; after it its operators are.
                see, note = self._seeing(stack, block), self._merging(stack, block)
                handles.append(block.module.register_forward_pre_hook(see, with_kwargs=True, prepend=True))
                handles.append(block.module.register_forward_hook(note))
            if stack.stack.norm and stack.described.merging:
                norm = stack.stack.owner.get_submodule(stack.stack.norm)
                handles.append(norm.register_forward_hook(self._seeing_image(stack), prepend=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _seeing(self, stack: StackRun, block: Block) -> Any:
        argument = token_argument(block)

        def see(module: nn.Module, args: Any, kwargs: Any) -> None:
            layout = stack.program.layout
            tokens = argument.read(args, kwargs)
            if not self._wanted(stack) or layout is None or tokens.shape[1] < layout.tokens:
                return
            call = stack.call
            if call is not None and call.starts:
                own = Placement(call.starts, layout.tokens).split(tokens)[1]
            else:
                own = split_pieces(tokens, layout.tokens, call.trailing if call else 0, text_last=False)[1]
            # The hooks that merge are in front of this one, so tokens stand in region order already.
            if layout.regions is not None and any(row.context.in_region_order for row in stack.program.spans):
                own = layout.regions.scatter(own)
            self._cluster(stack, block, own)

        return see

    def _seeing_image(self, stack: StackRun) -> Any:
        """Where a stack is merged before its first block."""

        def see(module: nn.Module, args: Any, image: Tensor) -> None:
            if stack.program.wraps and self._wanted(stack):
                self._cluster(stack, stack.described.merging[0], image.flatten(2).transpose(1, 2))

        return see

    def _cluster(self, stack: StackRun, block: Block, tokens: Tensor) -> None:
        begin = time.perf_counter()
        grid = stack.program.grid
        if len(grid) == 2:
            found = kmeans(tokens[-1].detach().float().cpu(), CLUSTERS).numpy()
            self.clusters[block.name, self.session.step.number] = found
            self.grids[block.name] = grid[0], grid[1]
        self.overhead += time.perf_counter() - begin

    def _merging(self, stack: StackRun, block: Block) -> Any:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            begin = time.perf_counter()
            grid = stack.program.grid
            operators = stack.operators_of(block) if self._wanted(stack) and len(grid) == 2 else None
            if operators is not None:
                operator = operators.queries if operators.queries is not None else operators.keys
                if operator is not None and operator.destinations is not None:
                    # Without the stopwatch that stands around it.
                    bare = getattr(operator, "bare", operator)
                    view = MergeView((grid[0], grid[1]), bare, operator.destinations.shape[0], self._order(stack))
                    self.views[block.name, self.session.step.number] = view
            self.overhead += time.perf_counter() - begin

        return note

    @staticmethod
    def _order(stack: StackRun) -> Tensor | None:
        reordered = any(row.context.in_region_order for row in stack.program.spans)
        layout = stack.program.layout
        return layout.regions.order.cpu() if reordered and layout is not None and layout.regions is not None else None

    def _wanted(self, stack: StackRun) -> bool:
        merges = stack.kind is Kind.MERGED and not self.session.calibrating and stack.program.merges
        return merges and self.session.step.number in self.steps
