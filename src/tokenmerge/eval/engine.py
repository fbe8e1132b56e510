"""Where images are made: an engine is given work and yields what it made, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenmerge.eval.experiment import Experiment
from tokenmerge.eval.image_maker import ImageMaker, MadeImage
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import Record
from tokenmerge.eval.variants import Variant


@dataclass(frozen=True)
class Work:
    """A pair and the variants of it that are still to be made, one after the other on one worker.

    That keeps variants interleaved: what slows a machine down for a minute slows them all.
    """

    pair: Pair
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Made:
    pair: Pair
    variant: Variant
    image: MadeImage


class Engine(Protocol):
    """Makes images, here or elsewhere."""

    def cut(self, prompts: list[str]) -> list[str]:
        """Prompts as the model's tokenizer reads them in full."""

    def run(self, work: Sequence[Work]) -> Iterator[Made]:
        """Every image of the work, each as soon as it is there."""

    def close(self) -> None:
        """Let go of what the engine holds."""


class LocalEngine:
    """Makes images in this process. The model is loaded when the first is asked for."""

    def __init__(self, experiment: Experiment, load: Callable[[Experiment], ImageMaker]) -> None:
        self._experiment = experiment
        self._load = load
        self._maker: ImageMaker | None = None

    @property
    def maker(self) -> ImageMaker:
        if self._maker is None:
            self._maker = self._load(self._experiment)
        return self._maker

    def cut(self, prompts: list[str]) -> list[str]:
        return self.maker.cut(prompts)

    def run(self, work: Sequence[Work]) -> Iterator[Made]:
        for item in work:
            for variant in item.variants:
                yield Made(item.pair, variant, self.maker.make(variant, item.pair))

    def close(self) -> None:
        self._maker = None


def work_left(pairs: Sequence[Pair], variants: Sequence[Variant], done: dict[tuple[str, str], Record]) -> list[Work]:
    """What is still to be made. Each pair begins with another variant, so that none is always first."""
    work = []
    for index, pair in enumerate(pairs):
        turn = index % len(variants)
        order = [*variants[turn:], *variants[:turn]]
        missing = tuple(variant for variant in order if (variant.key, pair.id) not in done)
        if missing:
            work.append(Work(pair, missing))
    return work
