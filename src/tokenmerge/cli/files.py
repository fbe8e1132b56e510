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
    except OSError as error:
        raise UsageError(f"cannot write into {folder} ({_reason(error)}): give another folder with --out.") from error
    return folder


def writable_image(path: str | Path) -> Path:
    """The path of an image that can be written; a folder gets an image.png."""
    file = Path(path).expanduser()
    if file.is_dir() or str(path).endswith("/"):
        file = file / "image.png"
    if file.suffix.lower() not in IMAGE_TYPES:
        raise UsageError(f"--out is {str(path)!r}: give a file that ends in {', '.join(IMAGE_TYPES)}, or a folder.")
    writable_folder(file.parent)
    return file


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
