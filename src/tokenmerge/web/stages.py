"""Where the time of an image goes: choosing destinations, making weights, merging, unmerging, attention, MLP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from torch import nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.api import denoisers_of
from tokenmerge.bench.instrument import StagedConfig
from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.session import Session
from tokenmerge.models import family_of
from tokenmerge.runtime.pipelines import LoadedPipeline
from tokenmerge.runtime.timing import Stopwatch

STAGES = ("selection", "weights", "merge", "unmerge", "attention", "MLP", "the rest")


@contextmanager
def timed_parts(loaded: LoadedPipeline) -> Iterator[Stopwatch]:
    """A stopwatch on every attention and every MLP of the blocks."""
    stopwatch = Stopwatch(loaded.device)
    with _on_parts(loaded, stopwatch):
        yield stopwatch


@contextmanager
def timed_merging(loaded: LoadedPipeline, config: MergeConfig) -> Iterator[tuple[Stopwatch, list[Session]]]:
    """Merging with a stopwatch on all that it does, and on attention and MLPs."""
    stopwatch = Stopwatch(loaded.device)
    staged: Any = StagedConfig(config, stopwatch)
    models = denoisers_of(loaded.pipe)
    sessions = [Session(model, family_of(model), cast(MergeConfig, staged)) for model in models]
    for session in sessions:
        session.attach()
    try:
        with _on_parts(loaded, stopwatch):
            yield stopwatch, sessions
    finally:
        for session in sessions:
            session.detach()


def stages_of(laps: dict[str, float], seconds: float, overhead: float = 0.0) -> dict[str, float]:
    """Seconds by stage, from a stopwatch's laps and the whole.

    overhead: seconds of the whole that were spent on looking, not on the image.
    """
    repeated = laps.get("repeated", 0.0)
    stages = {
        "selection": max(0.0, laps.get("from scratch", 0.0) - repeated),
        "weights": laps.get("weights", 0.0) + repeated,
        # Bringing tokens into the order of their regions, and back, is a part of merging them.
        "merge": laps.get("merge", 0.0) + laps.get("reorder", 0.0),
        "unmerge": laps.get("unmerge", 0.0),
        "attention": laps.get("attention", 0.0),
        "MLP": laps.get("MLP", 0.0),
    }
    return {**stages, "the rest": max(0.0, seconds - repeated - overhead - sum(stages.values()))}


@contextmanager
def _on_parts(loaded: LoadedPipeline, stopwatch: Stopwatch) -> Iterator[None]:
    handles: list[RemovableHandle] = []
    for model in denoisers_of(loaded.pipe):
        for name, module in _parts(model):
            handles += _lap_around(module, name, stopwatch)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Attention modules and MLPs of all blocks. An MLP that is no module counts as the rest."""
    found: dict[nn.Module, str] = {}
    for stack in family_of(model).stacks(model):
        for block in stack.blocks:
            for part in block.parts:
                if "mlp" not in part.kinds:
                    found[block.module.get_submodule(part.attention_path)] = "attention"
                elif part.kinds == ("mlp",):
                    found[block.module.get_submodule(part.module)] = "MLP"
    return [(name, module) for module, name in found.items()]


def _lap_around(module: nn.Module, name: str, stopwatch: Stopwatch) -> list[RemovableHandle]:
    """After the hook that merges what goes in, and before the one that unmerges what comes out."""
    running: list[AbstractContextManager[None]] = []

    def begin(module: nn.Module, args: Any) -> None:
        running.append(stopwatch.lap(name))
        running[-1].__enter__()

    def end(module: nn.Module, args: Any, output: Any) -> None:
        running.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(begin), module.register_forward_hook(end, prepend=True)]
