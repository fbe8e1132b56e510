"""How close a merged image is to the unmerged one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Fidelity:
    """PSNR in decibels (None where the images are the same, for it is infinite) and SSIM, on 8-bit RGB pixels."""

    identical: bool
    psnr: float | None
    ssim: float


def fidelity(unmerged: Image, merged: Image) -> Fidelity:
    """Compare two images of one size."""
    import numpy as np
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    before, after = (np.asarray(image.convert("RGB")) for image in (unmerged, merged))
    same = bool((before == after).all())
    return Fidelity(
        identical=same,
        psnr=None if same else float(peak_signal_noise_ratio(before, after, data_range=255)),
        ssim=float(structural_similarity(before, after, channel_axis=2, data_range=255)),
    )
