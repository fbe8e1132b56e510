"""records.jsonl: one line for every image that was made, and the only word on what has been made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmerge.eval.json_lines import lines_of, to_line
from tokenmerge.runtime.files import append_line, is_inside, write_atomically


@dataclass(frozen=True)
class Record:
    """An image, what it was made from, and how long that took."""

    id: str
    variant: str  # the variant's key
    ratio: float | None
    prompt: str
    seed: int
    seconds: float
    multiply_adds: int  # executed in all calls of the denoiser
    file: str  # from the run folder
    bytes: int
    sha256: str
    worker: str  # where it was made
    versions: dict[str, str]

    @property
    def key(self) -> tuple[str, str]:
        return self.variant, self.id

    def to_line(self) -> str:
        return to_line(dataclasses.asdict(self))


def append_record(path: Path, record: Record) -> None:
    append_line(path, record.to_line())


def load_records(path: Path) -> tuple[dict[tuple[str, str], Record], int]:
    """The records of a run whose images are all there, by variant and id; and how many lines had to be dropped.

    A line is dropped when it was torn by a kill, when its image is missing or of another size, or when it stands
    twice. The file is then rewritten without it, so that the image is made again.
    """
    if not path.exists():
        return {}, 0
    records: dict[tuple[str, str], Record] = {}
    count, last = 0, b"\n"
    for last in lines_of(path):
        count += last != b"\n"
        record = _parsed(last)
        if record is not None and _has_image(path.parent, record):
            records.setdefault(record.key, record)
    dropped = count - len(records)
    # A last line without an end is a torn one: an append would join it.
    if dropped or not last.endswith(b"\n"):
        write_records(path, records.values())
    return records, dropped


def write_records(path: Path, records: Iterable[Record]) -> None:
    write_atomically(path, "".join(record.to_line() + "\n" for record in records))


def _parsed(line: bytes) -> Record | None:
    try:
        values: Any = json.loads(line)
        return Record(**values)
    except (ValueError, TypeError, RecursionError):
        return None


def _has_image(folder: Path, record: Record) -> bool:
    try:
        # A record names the image that a run would have made for it, and no other file of this machine.
        if record.file != image_file(record.variant, record.id) or not is_inside(folder, record.file):
            return False
        return (folder / record.file).stat().st_size == record.bytes
    except (OSError, ValueError, TypeError):
        return False


def image_file(variant_key: str, pair_id: str) -> str:
    """Where an image is, from the run folder."""
    return f"images/{variant_key}/{pair_id}.png"
