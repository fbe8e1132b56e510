"""Draws what the page asks for: one model loaded at a time, one picture drawn at a time, unmerged ones kept."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenmerge.errors import TokenMergeError
from tokenmerge.runtime.generation import Picture, check_picture, draw, guidance_arguments
from tokenmerge.runtime.pipelines import LoadedPipeline, load_pipeline
from tokenmerge.web.bounds import Request
from tokenmerge.web.stages import timed_parts

if TYPE_CHECKING:
    from PIL.Image import Image

    from tokenmerge.config.base import MergeConfig
    from tokenmerge.runtime.fidelity import Fidelity

KEPT_UNMERGED = 8
WARM_UP_STEPS = 1


class Cancelled(Exception):
    """The user has asked to stop."""


@dataclass
class Watch:
    """How a drawing tells how far it is, and learns that it should stop.

    report: called with the fraction that is done, from 0 to 1, and what is being done.
    """

    report: Callable[[float, str], None] = lambda fraction, what: None
    stop: threading.Event = field(default_factory=threading.Event)

    def tell(self, fraction: float, what: str) -> None:
        """Say how far it is; raises where it should stop."""
        if self.stop.is_set():
            raise Cancelled
        self.report(fraction, what)

    def within(self, begin: float, end: float) -> Watch:
        """A watch on one stretch of the whole."""
        return Watch(lambda fraction, what: self.report(begin + fraction * (end - begin), what), self.stop)


@dataclass(frozen=True)
class Shot:
    """A picture, and how long it took."""

    image: Image
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)  # seconds in attention and in MLPs, where they were taken


@dataclass(frozen=True)
class Comparison:
    """One prompt and seed, unmerged and merged."""

    request: Request
    unmerged: Shot
    merged: Shot
    fidelity: Fidelity
    explanation: str
    reused: bool  # the unmerged image is one that was drawn before
    guidance: dict[str, Any]  # as the pipeline's call takes it
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        return self.unmerged.seconds / self.merged.seconds

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pixels, as plain JSON values."""
        request, picture = self.request, self.request.picture
        return {
            "prompt": picture.prompt,
            "seed": picture.seed,
            "steps": picture.steps,
            "size": list(self.merged.image.size),
            "guidance": picture.guidance,
            "model": request.model,
            "method": request.method,
            "config": request.config.to_dict(),
            "seconds": {"unmerged": self.unmerged.seconds, "merged": self.merged.seconds},
            "unmerged_reused": self.reused,
            "speedup": self.speedup,
            "psnr": self.fidelity.psnr,
            "ssim": self.fidelity.ssim,
        }


class Studio:
    """Holds the loaded model and the unmerged pictures drawn with it.

    pickles_of: the one model whose weights may be pickles; the page can name any, and whoever looks at it can.
    """

    def __init__(self, device: str | None = None, dtype: str | None = None, pickles_of: str | None = None) -> None:
        self._device, self._dtype, self._pickles_of = device, dtype, pickles_of
        self._loaded: LoadedPipeline | None = None
        # Two pictures at once would share one model, and neither would be timed right.
        self._lock = threading.RLock()
        self._unmerged: OrderedDict[tuple[str, Picture], Shot] = OrderedDict()
        self._warm: set[Any] = set()

    def load(self, name: str, watch: Watch | None = None) -> LoadedPipeline:
        """The model of that name, loaded unless it is there already."""
        with self._lock:
            if self._loaded is None or self._loaded.name != name:
                if watch is not None:
                    watch.tell(0, f"loading {name}")
                self._loaded = None  # two at a time may not fit
                self._warm.clear()
                self._loaded = load_pipeline(name, self._device, self._dtype, allow_pickle=name == self._pickles_of)
            return self._loaded

    def compare(self, request: Request, watch: Watch) -> Comparison:
        """Both pictures; the unmerged one only if it was not drawn before."""
        from tokenmerge.runtime.fidelity import fidelity

        with self._lock, _noting() as notes:
            loaded = self.load(request.model, watch)
            reused = self.has_unmerged(request.model, request.picture)
            half = 0.0 if reused else 0.5
            self._warm_up(loaded, request, watch)
            unmerged = self.unmerged(request.model, request.picture, watch.within(0, half))
            merged, explanation = self._merged(loaded, request, watch.within(half, 1))
        if loaded.random:
            notes.insert(0, f"{loaded.name} has random weights: its pictures mean nothing. Choose a trained model.")
        return Comparison(
            request,
            unmerged,
            merged,
            fidelity(unmerged.image, merged.image),
            explanation,
            reused,
            guidance_arguments(loaded.pipe, request.picture.guidance),
            tuple(dict.fromkeys(notes)),
        )

    @property
    def busy(self) -> bool:
        """Is something being drawn, or a model being loaded, by another thread?"""
        free = self._lock.acquire(blocking=False)
        if free:
            self._lock.release()
        return not free

    def has_unmerged(self, model: str, picture: Picture) -> bool:
        return (model, picture) in self._unmerged

    def unmerged(self, model: str, picture: Picture, watch: Watch) -> Shot:
        """The picture with nothing merged, from the last few where it is among them."""
        with self._lock:
            key = model, picture
            if key not in self._unmerged:
                loaded = self.load(model, watch)
                check_picture(loaded, picture)
                with timed_parts(loaded) as stopwatch:
                    image, seconds = self.draw(loaded, picture, "unmerged", watch)
                self._unmerged[key] = Shot(image, seconds, stopwatch.read())
                while len(self._unmerged) > KEPT_UNMERGED:
                    self._unmerged.popitem(last=False)
            self._unmerged.move_to_end(key)
            return self._unmerged[key]

    def unmerged_now(self, model: str, picture: Picture, watch: Watch) -> Shot:
        """The picture with nothing merged, drawn and timed anew, whatever is kept."""
        with self._lock:
            loaded = self.load(model, watch)
            check_picture(loaded, picture)
            watch.tell(0, "warming up")
            self._warm_up_unmerged(loaded, picture)
            return Shot(*self.draw(loaded, picture, "unmerged", watch))

    def merged(self, model: str, picture: Picture, config: MergeConfig, what: str, watch: Watch) -> Shot:
        """The picture with tokens merged."""
        request = Request(model, picture, what, config)
        with self._lock:
            loaded = self.load(model, watch)
            self._warm_up(loaded, request, watch)
            return self._merged(loaded, request, watch, explained=False)[0]

    @contextmanager
    def alone(self, model: str, watch: Watch) -> Iterator[LoadedPipeline]:
        """The model, and nobody else drawing with it."""
        with self._lock:
            yield self.load(model, watch)

    @staticmethod
    def draw(loaded: LoadedPipeline, picture: Picture, what: str, watch: Watch) -> tuple[Image, float]:
        """Draw with whatever is applied to the pipeline, telling of every step."""
        watch.tell(0, f"{what}: step 0 of {picture.steps}")

        def on_step(done: int) -> None:
            watch.tell(min(1.0, done / picture.steps), f"{what}: step {done} of {picture.steps}")

        return draw(loaded, picture, on_step=on_step)

    def _merged(
        self, loaded: LoadedPipeline, request: Request, watch: Watch, explained: bool = True
    ) -> tuple[Shot, str]:
        from tokenmerge.api import merged

        check_picture(loaded, request.picture)
        with merged(loaded.pipe, request.config) as handle:
            image, seconds = self.draw(loaded, request.picture, request.label, watch)
            explanation = str(handle.explain()) if explained else ""
        return Shot(image, seconds), explanation

    def _warm_up(self, loaded: LoadedPipeline, request: Request, watch: Watch) -> None:
        """A step of each that is not timed, for the first finds cold caches; the merged one first, to fail soon."""
        from tokenmerge.api import merged

        check_picture(loaded, request.picture)
        short = replace(request.picture, steps=WARM_UP_STEPS)
        watch.tell(0, "warming up")
        if (request.config, short.size) not in self._warm:
            with merged(loaded.pipe, request.config):
                draw(loaded, short)
            self._warm.add((request.config, short.size))
        if not self.has_unmerged(request.model, request.picture):
            self._warm_up_unmerged(loaded, request.picture)

    def _warm_up_unmerged(self, loaded: LoadedPipeline, picture: Picture) -> None:
        if picture.size not in self._warm:
            draw(loaded, replace(picture, steps=WARM_UP_STEPS))
            self._warm.add(picture.size)


@contextmanager
def _noting() -> Iterator[list[str]]:
    """Collects the library's own warnings, such as that a model does not know a word."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    notes += [str(item.message) for item in caught if item.category.__module__.startswith("tokenmerge")]


def sentence_of(error: Exception) -> str:
    """What the page says of an error."""
    if isinstance(error, TokenMergeError):
        text = str(error).strip()
        return text[:1].upper() + text[1:]
    if type(error).__name__ == "OutOfMemoryError":
        return "The device ran out of memory: use a smaller size."
    return f"Something went wrong inside ({type(error).__name__}: {error}). Please report it, with what you entered."
