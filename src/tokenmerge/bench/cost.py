"""What a method costs other than time: multiply-adds, counted without running anything, and memory."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tokenmerge.bench.contenders import Contender
from tokenmerge.bench.subject import Subject, subject_of
from tokenmerge.runtime.multiply_adds import count_multiply_adds


def shadow_of(subject: Subject) -> Subject:
    """The same model and inputs on the meta device: all the shapes, none of the memory and none of the work."""
    model = subject.model
    # deepcopy takes what it finds in its memo for copied already, so no weight is ever duplicated.
    memo: dict[int, Any] = {id(weight): _meta_parameter(weight) for weight in model.parameters()}
    memo.update((id(buffer), buffer.to("meta")) for buffer in model.buffers())
    shadow = copy.deepcopy(model, memo)
    return subject_of(shadow, subject.size, subject.batch, subject.family)


def multiply_adds(shadow: Subject, contender: Contender) -> dict[str, int]:
    """Multiply-adds of one step of each kind."""
    counts = {}
    with contender.installed(shadow):
        for step, phase in enumerate(contender.schedule.phases):
            counts[phase] = count_multiply_adds(partial(shadow.call, step))
    return counts


def peak_memory(device: torch.device, call: Callable[[], object]) -> int | None:
    """The most bytes that `call` holds at once, above what was allocated before it; None if that is unknown."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type == "cpu":
        return _peak_of_cpu_allocator(call)
    call()
    return None


def _peak_of_cpu_allocator(call: Callable[[], object]) -> int:
    """Follows every allocation and release that torch makes: a process's own peak would mix all methods into one."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler prints remarks
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate((int(change) for _, change in changes), initial=0))


def _meta_parameter(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().to("meta"), requires_grad=weight.requires_grad)
