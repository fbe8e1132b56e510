"""How many kernels merging launches at a step, counted on the meta device: views and allocations launch none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tokenmerge as tm
from tokenmerge.bench.subject import Subject
from tokenmerge.engine.schedule import Kind, Step
from tokenmerge.engine.session import Session
from tokenmerge.models import family_of
from tokenmerge.models.published import architecture, build_from_config
from tokenmerge.simulate.predict import subject_for
from tokenmerge.simulate.recording import launches_kernel, record

# Blocks at each level of SDXL, and of the two kinds that Flux has: what a span launches does not depend on how many.
SHAPES: dict[str, Any] = {
    "sdxl": {"transformer_layers_per_block": (1, 1, 2)},
    "flux": {"num_layers": 2, "num_single_layers": 2},
}
MOST = 8  # for each span


class OurLaunches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels by the module of tokenmerge that launches them; those of the model are not counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_module: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        module = _launched_by()
        if launches_kernel(func, output) and module is not None:
            self.by_module[module] += 1
        return output


def _launched_by() -> str | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("diffusers."):
            return None
        if name.startswith("tokenmerge.") and not name.startswith(("tokenmerge.simulate", "tokenmerge.bench")):
            return name
        frame = frame.f_back
    return None


@lru_cache
def subject_like(name: str) -> Subject:
    known = architecture(name)
    model = build_from_config(known.class_name, {**known.config, **SHAPES[name]})
    return subject_for(model, (512, 512), 2)


@contextmanager
def attached(subject: Subject, config: tm.MergeConfig) -> Iterator[Session]:
    session = Session(subject.model, family_of(subject.model), config)
    session.attach()
    try:
        yield session
    finally:
        session.detach()


def launches(subject: Subject, session: Session, step: Step) -> Counter[str]:
    session.steps.forced = step
    with OurLaunches() as counted:
        subject.call(0)
    return counted.by_module


@pytest.mark.parametrize("name", SHAPES)
def test_a_merged_step_launches_few_kernels_for_each_span(name: str) -> None:
    subject = subject_like(name)
    unmerged = len(record(lambda: subject.call(0)))
    with attached(subject, tm.TileMean(skip_blocks=0)) as session:
        for select in (True, False):
            launches(subject, session, Step(select, Kind.CALIBRATE, select=select, weights=select))
        found = launches(subject, session, Step(2, Kind.MERGED, select=False, weights=False))
        spans = sum(len(stack.program.spans) for stack in session.stacks)
        merged = len(record(lambda: subject.call(0)))
    positions = found.pop("tokenmerge.models.base", 0)  # once a step, for all blocks
    assert spans
    assert sum(found.values()) <= MOST * spans, found
    assert positions <= 6
    assert merged <= unmerged + MOST * spans + positions


def test_sampled_keys_launch_few_kernels_for_each_attention() -> None:
    subject = subject_like("sdxl")
    with attached(subject, tm.SampledKeys()) as session:
        launches(subject, session, Step(0, Kind.MERGED, select=True, weights=True))
        found = launches(subject, session, Step(1, Kind.MERGED, select=True, weights=True))
        attentions = sum(len(stack.program.attentions) + len(stack.program.spans) for stack in session.stacks)
    drawn = sum(count for module, count in found.items() if module != "tokenmerge.ops.indexing")
    assert attentions
    assert found["tokenmerge.ops.indexing"] <= attentions
    assert drawn <= 120  # once a step for each level, however many attentions there are


def test_a_launch_is_noticed() -> None:
    tokens = torch.empty(1, 4, 2, device="meta")
    assert launches_kernel(torch.ops.aten.add.Tensor, tokens)
    assert not launches_kernel(torch.ops.aten.view.default, tokens)
    assert not launches_kernel(torch.ops.aten.empty_like.default, tokens)
