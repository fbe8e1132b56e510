"""Images from files as tensors."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from tokenmerge.eval.errors import ExperimentError, MetricUnavailable
from tokenmerge.runtime.fidelity import pixels_of

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_image(path: Path) -> Tensor:
    """(3, H, W) uint8."""
    try:
        with Image.open(path) as image:
            return pixels_of(image).contiguous()
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ExperimentError(
            f"the image {path} cannot be read ({error}): delete it and run the command again."
        ) from None


def image_files(folder: Path) -> list[Path]:
    """Every image in a folder and below it, in a fixed order."""
    if not folder.is_dir():
        raise MetricUnavailable(f"the folder of real images {folder} does not exist")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if len(files) < 2:
        raise MetricUnavailable(f"the folder of real images {folder} holds {len(files)} images; FID needs two or more")
    return files
