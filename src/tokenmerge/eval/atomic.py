"""Files that are there whole or not at all, whenever the process is killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenmerge.eval.errors import RunFolderError

TEMPORARY = ".part"


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the file, then rename over it: a reader, or a later run, sees the old content or the new."""
    data = content.encode() if isinstance(content, str) else content
    with plain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}{TEMPORARY}")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def is_inside(folder: Path, file: str) -> bool:
    """Is this name one of a file in the folder, with links followed as far as they go?"""
    return (folder / file).resolve().is_relative_to(folder.resolve())


def append_line(path: Path, line: str) -> None:
    """Add one line to a file. If it cannot be written whole, nothing of it stays."""
    with plain_disk_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            length = os.fstat(descriptor).st_size
            data = line.encode() + b"\n"
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, length)
                raise
        finally:
            os.close(descriptor)


@contextmanager
def plain_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a full or read-only disk into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFolderError(
                f"the disk is full: {path} could not be written. Everything made so far is safe; free some space and "
                f"run the same command again."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise RunFolderError(f"{path} may not be written: choose a folder of your own with --out.") from error
        raise RunFolderError(
            f"{path} could not be written ({error.strerror or error}): look at the disk, then run the command again."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename outlast a power cut; not every file system lets a folder be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
