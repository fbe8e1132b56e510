"""Where commands write: checked before any work is done, and with every failure a sentence."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tokenmerge.errors import UsageError

IMAGE_TYPES = (".png", ".jpg", ".jpeg", ".webp")


def writable_folder(path: str | Path) -> Path:
    """The folder, made if need be; an error now is better than one after minutes of work."""
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"cannot write into {folder}, because a file is in the way: give another --out.") from error
    except OSError as error:
        raise UsageError(f"cannot write into {folder} ({reason(error)}): give another folder with --out.") from error
    return folder


def writable_json(option: str, path: str | Path) -> Path:
    """The path of a JSON file that can be written."""
    file = Path(path).expanduser()
    if file.suffix != ".json":
        raise UsageError(f"{option} is {str(path)!r}: it is a JSON file, so its name must end in .json.")
    writable_folder(file.parent)
    return file


def writable_image(path: str | Path) -> Path:
    """The path of an image that can be written; a folder gets an image.png."""
    file = Path(path).expanduser()
    if file.is_dir() or str(path).endswith("/"):
        file = file / "image.png"
    if file.suffix.lower() not in IMAGE_TYPES:
        raise UsageError(f"--out is {str(path)!r}: give a file that ends in {', '.join(IMAGE_TYPES)}, or a folder.")
    writable_folder(file.parent)
    return file


def reason(error: Exception) -> str:
    """Why a file cannot be read or written, without what Python puts around it.

    >>> reason(FileNotFoundError(2, "No such file or directory", "config.json"))
    'no such file or directory'
    """
    return (getattr(error, "strerror", None) or str(error)).lower()
