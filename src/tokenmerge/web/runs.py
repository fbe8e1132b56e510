"""Generates what the page asks for: one model loaded at a time, one image generated at a time, unmerged ones kept."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenmerge.accelerations.base import Acceleration, Generation, refuse_misfit
from tokenmerge.errors import TokenMergeError
from tokenmerge.runtime.generation import ImageRequest, check_request, guidance_arguments
from tokenmerge.runtime.pipelines import LoadedPipeline, load_pipeline
from tokenmerge.web.bounds import Request
from tokenmerge.web.stages import timed_parts

if TYPE_CHECKING:
    from PIL.Image import Image

    from tokenmerge.runtime.fidelity import Fidelity

KEPT_UNMERGED = 8
WARM_UP_STEPS = 1


class Cancelled(Exception):
    """The user has asked to stop."""


@dataclass
class Watch:
    """How a generation reports its progress, and how it is stopped.

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
    """An image, and how long it took."""

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
    reused: bool  # the unmerged image is one that was generated before
    guidance: dict[str, Any]  # as the pipeline's call takes it
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        return self.unmerged.seconds / self.merged.seconds

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pixels, as plain JSON values."""
        request, wanted = self.request, self.request.image
        return {
            "prompt": wanted.prompt,
            "seed": wanted.seed,
            "steps": wanted.steps,
            "size": list(self.merged.image.size),
            "guidance": wanted.guidance,
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
    """Holds the loaded model and the unmerged images generated with it.

    pickles_of: the one model whose weights may be pickles; the page can name any, and whoever looks at it can.
    """

    def __init__(self, device: str | None = None, dtype: str | None = None, pickles_of: str | None = None) -> None:
        self._device, self._dtype, self._pickles_of = device, dtype, pickles_of
        self._loaded: LoadedPipeline | None = None
        # Two images at once would share one model, and neither would be timed right.
        self._lock = threading.RLock()
        self._unmerged: OrderedDict[tuple[str, ImageRequest], Shot] = OrderedDict()
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
        """Both images; the unmerged one only if it was not generated before."""
        from tokenmerge.runtime.fidelity import fidelity

        with self._lock, _noting() as notes:
            loaded = self.load(request.model, watch)
            request = request.for_model(loaded.pipe)
            reused = self.has_unmerged(request.model, request.image)
            half = 0.0 if reused else 0.5
            self._warm_up(loaded, request, watch)
            unmerged = self.unmerged(request.model, request.image, watch.within(0, half))
            merged, explanation = self._merged(loaded, request, watch.within(half, 1))
        if loaded.random:
            notes.insert(0, f"{loaded.name} has random weights: its images mean nothing. Choose a trained model.")
        return Comparison(
            request,
            unmerged,
            merged,
            fidelity(unmerged.image, merged.image),
            explanation,
            reused,
            guidance_arguments(loaded.pipe, request.image.guidance),
            tuple(dict.fromkeys(notes)),
        )

    @property
    def busy(self) -> bool:
        """Whether another thread is generating an image or loading a model."""
        free = self._lock.acquire(blocking=False)
        if free:
            self._lock.release()
        return not free

    def has_unmerged(self, model: str, wanted: ImageRequest) -> bool:
        return (model, wanted) in self._unmerged

    def unmerged(self, model: str, wanted: ImageRequest, watch: Watch) -> Shot:
        """The image with nothing merged, from the last few where it is among them."""
        with self._lock:
            key = model, wanted
            if key not in self._unmerged:
                loaded = self.load(model, watch)
                check_request(loaded, wanted)
                with timed_parts(loaded) as stopwatch:
                    image, seconds = self.generate(loaded, wanted, "unmerged", watch)
                self._unmerged[key] = Shot(image, seconds, stopwatch.read())
                while len(self._unmerged) > KEPT_UNMERGED:
                    self._unmerged.popitem(last=False)
            self._unmerged.move_to_end(key)
            return self._unmerged[key]

    def unmerged_now(self, model: str, wanted: ImageRequest, watch: Watch) -> Shot:
        """The image with nothing merged, generated and timed again, whatever is cached."""
        with self._lock:
            loaded = self.load(model, watch)
            check_request(loaded, wanted)
            watch.tell(0, "warming up")
            self._warm_up_unmerged(loaded, wanted)
            return Shot(*self.generate(loaded, wanted, "unmerged", watch))

    def accelerated(
        self, model: str, wanted: ImageRequest, acceleration: Acceleration, what: str, watch: Watch
    ) -> Shot:
        """The image with anything applied that makes it faster: a method of ours, a preset, a cache, fewer steps."""
        with self._lock:
            loaded = self.load(model, watch)
            check_request(loaded, wanted)
            refuse_misfit(what, acceleration, loaded.pipe)
            wanted = replace(wanted, steps=acceleration.steps_of(wanted.steps))
            generation = Generation(wanted.steps)
            watch.tell(0, "warming up")
            if (what, wanted.size) not in self._warm:
                with _noting(), acceleration.applied(loaded.pipe, generation):  # so few steps may all run full
                    loaded.generate(replace(wanted, steps=WARM_UP_STEPS))
                self._warm.add((what, wanted.size))
            with acceleration.applied(loaded.pipe, generation):
                return Shot(*self.generate(loaded, wanted, what, watch))

    @contextmanager
    def alone(self, model: str, watch: Watch) -> Iterator[LoadedPipeline]:
        """The model, and nobody else generating with it."""
        with self._lock:
            yield self.load(model, watch)

    @staticmethod
    def generate(loaded: LoadedPipeline, wanted: ImageRequest, what: str, watch: Watch) -> tuple[Image, float]:
        """Generate with whatever is applied to the pipeline, telling of every step."""
        watch.tell(0, f"{what}: step 0 of {wanted.steps}")

        def on_step(done: int) -> None:
            watch.tell(min(1.0, done / wanted.steps), f"{what}: step {done} of {wanted.steps}")

        return loaded.generate(wanted, on_step=on_step)

    def _merged(self, loaded: LoadedPipeline, request: Request, watch: Watch) -> tuple[Shot, str]:
        from tokenmerge.api import merged

        check_request(loaded, request.image)
        with merged(loaded.pipe, request.config) as handle:
            image, seconds = self.generate(loaded, request.image, request.label, watch)
            explanation = str(handle.explain())
        return Shot(image, seconds), explanation

    def _warm_up(self, loaded: LoadedPipeline, request: Request, watch: Watch) -> None:
        """A step of each that is not timed, for the first finds cold caches; the merged one first, to fail soon."""
        from tokenmerge.api import merged

        check_request(loaded, request.image)
        short = replace(request.image, steps=WARM_UP_STEPS)
        watch.tell(0, "warming up")
        if (request.config, short.size) not in self._warm:
            with merged(loaded.pipe, request.config):
                loaded.generate(short)
            self._warm.add((request.config, short.size))
        if not self.has_unmerged(request.model, request.image):
            self._warm_up_unmerged(loaded, request.image)

    def _warm_up_unmerged(self, loaded: LoadedPipeline, wanted: ImageRequest) -> None:
        if wanted.size not in self._warm:
            loaded.generate(replace(wanted, steps=WARM_UP_STEPS))
            self._warm.add(wanted.size)


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
