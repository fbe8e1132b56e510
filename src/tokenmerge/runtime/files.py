"""Writing files that are complete or not there at all, even if the process is killed."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmerge.errors import WriteError

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPORARY = ".part"
METADATA_KEY = "tokenmerge"  # under which a PNG says how it was made


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write next to the file, then rename over it: a reader, or a later run, sees the old content or the new."""
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


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON that any reader takes: no NaN, no infinity."""
    write_atomically(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_image(path: Path, image: Image, about: dict[str, Any] | None = None) -> None:
    """Write an image in the format of the file's name; a PNG also carries how it was made, as JSON."""
    write_atomically(path, encoded(image, path.suffix, about))


def encoded(image: Image, suffix: str = ".png", about: dict[str, Any] | None = None) -> bytes:
    """The bytes of an image file."""
    from PIL import Image as formats
    from PIL.PngImagePlugin import PngInfo

    kind = formats.registered_extensions()[suffix.lower()]
    options: dict[str, Any] = {}
    if kind == "PNG" and about is not None:
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_itxt(METADATA_KEY, json.dumps(about, ensure_ascii=False))
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def is_inside(folder: Path, file: str) -> bool:
    """Whether this name is that of a file in the folder, once links are followed."""
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
            raise WriteError(
                f"the disk is full: {path} could not be written. Everything made so far is safe; free some space and "
                f"run the same command again."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise WriteError(f"{path} may not be written: choose a folder of your own with --out.") from error
        raise WriteError(
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
