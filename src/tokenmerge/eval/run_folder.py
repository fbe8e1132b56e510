"""A run's folder: locked by one process, bound to one experiment, complete after any number of kills."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tokenmerge.eval.errors import ExperimentError, RunFolderError
from tokenmerge.eval.experiment import Experiment, read_experiment
from tokenmerge.eval.image_maker import MadeImage
from tokenmerge.eval.json_lines import read_lines, to_line
from tokenmerge.eval.pairs import Pair, sample_start
from tokenmerge.eval.records import Record, append_record, image_file, load_records
from tokenmerge.eval.variants import Variant
from tokenmerge.runtime.files import TEMPORARY, is_inside, plain_disk_errors, write_atomically
from tokenmerge.runtime.pipelines import default_model


class RunFolder:
    """Where a run keeps its images, its records and its results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment_file = path / "experiment.toml"
        self.pairs_file = path / "pairs.jsonl"
        self.records_file = path / "records.jsonl"
        self.records: dict[tuple[str, str], Record] = {}
        self.dropped = 0  # records that did not hold up when the folder was opened

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder. The lock goes with the process, so a killed one leaves none behind."""
        self._refuse_foreign_folder()
        with plain_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        holder = self.path / ".lock-holder"
        try:
            lock.acquire()
        except Timeout:
            who = holder.read_text()[:200] if holder.exists() else "another process"
            raise RunFolderError(
                f"{self.path} is in use by {who}: wait until it has finished, or use another --out."
            ) from None
        except (OSError, NotImplementedError) as error:
            raise RunFolderError(f"{self.path} cannot be locked ({error}): use an --out on another disk.") from error
        try:
            with plain_disk_errors(holder):
                holder.write_text(f"process {os.getpid()} on {platform.node()}")
                for part in self.path.rglob(f".*{TEMPORARY}"):
                    part.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def _refuse_foreign_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file: give a folder to --out.")
        ours = {".lock", ".lock-holder", "experiment.toml", ".experiment.toml" + TEMPORARY}
        strangers = [] if not self.path.exists() else [p.name for p in self.path.iterdir() if p.name not in ours]
        if strangers and not self.experiment_file.exists():
            raise RunFolderError(
                f"{self.path} holds {sorted(strangers)[0]!r} and is no run folder: give a new or empty folder to --out."
            )

    # -- the experiment and its pairs --------------------------------------------------------------------------

    def settle_experiment(self, experiment: Experiment, threads: int) -> Experiment:
        """The experiment with what is decided once per run filled in; refuses a folder that another one made.

        Metrics, figures and the number of prompts may change from run to run; what decides the images may not.
        """
        if self.experiment_file.exists():
            try:
                stored = read_experiment(self.experiment_file)
            except ExperimentError as error:
                raise RunFolderError(f"{self.path} was made by an experiment that cannot be read: {error}") from None
            experiment = _with_decided(experiment, stored.seeds.start, stored.model.threads, stored.model.name)
            here, there = _settled_part(experiment), _settled_part(stored)
            if here != there:
                raise RunFolderError(
                    f"{self.path} was made by another experiment: {_first_difference(here, there)}. Use another --out, "
                    f"or the experiment that made it ({self.experiment_file})."
                )
        else:
            experiment = _with_decided(experiment, sample_start(), threads, default_model())
        write_atomically(self.experiment_file, experiment.to_toml())
        return experiment

    def stored_pairs(self) -> list[Pair]:
        try:
            return [Pair(**values) for values in read_lines(self.pairs_file)]
        except TypeError:
            raise RunFolderError(f"{self.pairs_file} holds something else than pairs: use another --out.") from None

    def settle_pairs(self, pairs: Sequence[Pair]) -> None:
        """Write the pairs down; images already made must be images of these."""
        stored = self.stored_pairs()
        for old, new in zip(stored, pairs, strict=False):
            if old != new:
                raise RunFolderError(
                    f"{self.path} was made with other prompts or seeds: its pair {old.id} is {old.prompt[:60]!r} with "
                    f"seed {old.seed}, and now it would be {new.prompt[:60]!r} with {new.seed}. Use another --out."
                )
        if len(pairs) > len(stored):
            write_atomically(self.pairs_file, "".join(to_line(dataclasses.asdict(pair)) + "\n" for pair in pairs))

    # -- images ------------------------------------------------------------------------------------------------

    def load_records(self) -> None:
        self.records, self.dropped = load_records(self.records_file)

    def save(self, pair: Pair, variant: Variant, image: MadeImage) -> Record:
        """The image first, then its line: a line without an image cannot come about."""
        file = image_file(variant.key, pair.id)
        if not is_inside(self.path, file):
            raise RunFolderError(f"{self.path / file} leads out of the run's folder: use another --out.")
        write_atomically(self.path / file, image.png)
        record = Record(
            id=pair.id,
            variant=variant.key,
            ratio=variant.ratio,
            prompt=pair.prompt,
            seed=pair.seed,
            seconds=image.seconds,
            multiply_adds=image.multiply_adds,
            file=file,
            bytes=len(image.png),
            sha256=hashlib.sha256(image.png).hexdigest(),
            worker=image.worker,
            versions=image.versions,
        )
        append_record(self.records_file, record)
        self.records[record.key] = record
        return record


def _with_decided(experiment: Experiment, start: int | None, threads: int, model_name: str) -> Experiment:
    seeds, model = experiment.seeds, experiment.model
    if not model.name:
        model = dataclasses.replace(model, name=model_name)
    if not seeds.values and seeds.start is None:
        seeds = dataclasses.replace(seeds, start=start)
    if model.threads == 0:
        model = dataclasses.replace(model, threads=threads)
    return dataclasses.replace(experiment, seeds=seeds, model=model)


def _settled_part(experiment: Experiment) -> dict[str, Any]:
    return {**experiment.what_makes_images(), "seeds": dataclasses.asdict(experiment.seeds)}


def _first_difference(here: Any, there: Any, where: str = "") -> str:
    """The first value in which two experiments differ, as a sentence's middle."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in [*here, *(key for key in there if key not in here)]:
            if here.get(key) != there.get(key):
                return _first_difference(here.get(key), there.get(key), f"{where}.{key}".lstrip("."))
    if isinstance(here, (list, tuple)) and isinstance(there, (list, tuple)) and len(here) == len(there):
        for index, (ours, theirs) in enumerate(zip(here, there, strict=True)):
            if ours != theirs:
                return _first_difference(ours, theirs, f"{where}[{index}]")
    if isinstance(here, (list, tuple)) and isinstance(there, (list, tuple)) and len(here) + len(there) > 8:
        return f"{where} has {len(here)} entries here and {len(there)} there"
    return f"{where} is {here!r} here and {there!r} there"
