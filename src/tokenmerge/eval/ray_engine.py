"""Makes images on a Ray cluster: one worker that holds the model per GPU, or per share of CPUs.

Workers send images back and write nothing, so no folder need be shared; the records and files are those of a local run.
A worker that is lost is replaced and its unfinished pairs are given out again.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tokenmerge.errors import TokenMergeError
from tokenmerge.eval.engine import LocalEngine, Made, Work
from tokenmerge.eval.errors import WorkerError
from tokenmerge.eval.experiment import Experiment
from tokenmerge.eval.image_maker import MadeImage
from tokenmerge.eval.loading import load_maker
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.variants import Variant

CPUS_A_WORKER = 4
# This many losses in a row without a single image mean that something is wrong with all of them.
MOST_LOSSES = 3
OWN_MEMORY = 256 * 2**20  # bytes
IMAGE_TRIES = 3  # an image that has ended this many workers is not tried again


class Worker:
    """Lives in its own process, somewhere on the cluster, and holds the model."""

    def __init__(self, experiment: Experiment, allow_pickle: bool = False) -> None:
        # Loaded at the first call: what goes wrong in a constructor reaches the other side without its cause.
        self._local = LocalEngine(experiment, partial(load_maker, allow_pickle=allow_pickle))

    def cut(self, prompts: list[str]) -> list[str]:
        return self._local.cut(prompts)

    def make(self, variant: Variant, pair: Pair) -> MadeImage:
        return self._local.maker.make(variant, pair)


class RayEngine:
    """Gives pairs out to workers, a pair at a time."""

    def __init__(
        self,
        experiment: Experiment,
        address: str | None = None,
        workers: int | None = None,
        allow_pickle: bool = False,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise WorkerError("--engine ray needs Ray: pip install 'tokenmerge[ray]'.") from None
        self._ray = ray
        self._experiment = experiment
        self._allow_pickle = allow_pickle
        self._started = not ray.is_initialized()
        if self._started:
            _connect(ray, address)
        self._needs, self._count = self._share_of(ray.cluster_resources(), workers)
        self._workers: list[Any] = []
        self._losses = 0

    def _share_of(self, cluster: dict[str, float], workers: int | None) -> tuple[dict[str, float], int]:
        """What a worker takes of the cluster, and how many there are."""
        gpus, cpus = int(cluster.get("GPU", 0)), cluster.get("CPU", 1)
        if gpus and self._experiment.model.device != "cpu":
            return {"num_gpus": 1, "num_cpus": min(1.0, cpus / gpus)}, min(gpus, workers or gpus)
        count = workers or max(1, int(cpus // CPUS_A_WORKER))
        # Rounded down: shares of a third must fit three times.
        return {"num_cpus": math.floor(100 * cpus / count) / 100 if cpus < count else math.floor(cpus / count)}, count

    def cut(self, prompts: list[str]) -> list[str]:
        if not self._workers:
            self._workers.append(self._start())
        try:
            cut: list[str] = self._ray.get(self._workers[0].cut.remote(prompts))
        except self._ray.exceptions.RayError as error:
            raise self._told(error) from error
        return cut

    def run(self, work: Sequence[Work]) -> Iterator[Made]:
        """Every worker has one image in flight; a pair stays with its worker until it is done or the worker is lost."""
        waiting = deque(work)
        while len(self._workers) < min(self._count, len(work)):
            self._workers.append(self._start())
        busy: dict[Any, tuple[Any, Work]] = {}  # by the image in flight: its worker, and what is left of its pair
        tries: dict[tuple[str, str], int] = {}
        for worker in self._workers:
            self._give(worker, waiting, busy)
        while busy:
            ready, _ = self._ray.wait(list(busy), num_returns=1)
            worker, left = busy.pop(ready[0])
            variant = left.variants[0]
            try:
                image: MadeImage = self._ray.get(ready[0])
            except self._ray.exceptions.RayActorError as error:
                key = variant.key, left.pair.id
                tries[key] = tries.get(key, 0) + 1
                worker = self._replaced(worker, error, tries[key])
                waiting.appendleft(left)
            except self._ray.exceptions.RayError as error:
                raise self._told(error) from error
            else:
                self._losses = 0
                yield Made(left.pair, variant, image)
                if left.variants[1:]:
                    waiting.appendleft(Work(left.pair, left.variants[1:]))
            self._give(worker, waiting, busy)

    def _give(self, worker: Any, waiting: deque[Work], busy: dict[Any, tuple[Any, Work]]) -> None:
        if waiting:
            item = waiting.popleft()
            busy[worker.make.remote(item.variants[0], item.pair)] = (worker, item)

    def _start(self) -> Any:
        return self._ray.remote(**self._needs)(Worker).remote(self._experiment, self._allow_pickle)

    def _replaced(self, lost: Any, error: Exception, tries: int) -> Any:
        self._losses += 1
        if self._losses > MOST_LOSSES * self._count or tries >= IMAGE_TRIES:
            raise WorkerError(
                f"workers were lost {self._losses} times in a row ({_first_line(error)}): look at the cluster, its "
                f"memory first, then run the same command again; what was made is safe."
            ) from error
        fresh = self._start()
        self._workers[self._workers.index(lost)] = fresh
        return fresh

    def _told(self, error: Exception) -> Exception:
        """What a worker raised, as it would have been raised here."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, TokenMergeError):
            return cause
        return WorkerError(
            f"a worker failed ({_first_line(error)}): run the same command again; what was made is safe."
        )

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers.clear()
        if self._started:
            self._ray.shutdown()
            self._started = False


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None and "RAY_ADDRESS" not in os.environ:
        # A Ray of our own, for this run: images pass through it one by one, so it needs little memory.
        options |= {"object_store_memory": OWN_MEMORY, "include_dashboard": False}
        address = "local"
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise WorkerError(f"Ray at {address} could not be reached ({_first_line(error)}): check --address.") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__
