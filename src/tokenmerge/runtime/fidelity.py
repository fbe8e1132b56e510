"""How close a merged image is to the unmerged one: MSE, PSNR and SSIM on 8-bit values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

# Two equal images have no noise and an infinite ratio; a mean over pairs needs a number.
PSNR_OF_EQUAL_IMAGES = 100.0
# Wang et al. 2004: a Gaussian window of 11 x 11, and constants that keep flat windows from dividing by zero.
WINDOW_REACH, WINDOW_SIGMA = 5, 1.5
FLAT_MEAN, FLAT_VARIANCE = 0.01**2, 0.03**2


@dataclass(frozen=True)
class Fidelity:
    """PSNR in decibels (None for identical images, because it is infinite) and SSIM."""

    identical: bool
    psnr: float | None
    ssim: float

    @property
    def finite_psnr(self) -> float:
        """Decibels, at most 100: for means and plots."""
        return PSNR_OF_EQUAL_IMAGES if self.psnr is None else min(self.psnr, PSNR_OF_EQUAL_IMAGES)


def fidelity(unmerged: Image, merged: Image) -> Fidelity:
    """Compare two images of one size."""
    before, after = pixels_of(unmerged), pixels_of(merged)
    error = mse(before, after)
    return Fidelity(identical=error == 0, psnr=_decibels(error) if error else None, ssim=ssim(before, after))


def psnr_of(unmerged: Any, made: Any) -> float:
    """Decibels between two outputs, at most 100: images by their 8-bit values, arrays and tensors by their range."""
    if hasattr(unmerged, "convert") and hasattr(made, "convert"):
        return fidelity(unmerged, made).finite_psnr
    before, after = (torch.as_tensor(output).detach().double().cpu() for output in (unmerged, made))
    error = float((before - after).square().mean())
    peak = float(before.max() - before.min())
    if error == 0 or peak == 0:
        return PSNR_OF_EQUAL_IMAGES if error == 0 else 0.0
    return min(10 * math.log10(peak**2 / error), PSNR_OF_EQUAL_IMAGES)


def pixels_of(image: Image) -> Tensor:
    """(3, H, W) uint8."""
    import numpy as np

    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def mse(baseline: Tensor, image: Tensor) -> float:
    """(3, H, W) uint8 each -> mean squared difference of values from 0 to 255."""
    return float((baseline.double() - image.double()).square().mean())


def psnr(baseline: Tensor, image: Tensor) -> float:
    """(3, H, W) uint8 each -> decibels; 100 for equal images."""
    error = mse(baseline, image)
    return min(_decibels(error), PSNR_OF_EQUAL_IMAGES) if error else PSNR_OF_EQUAL_IMAGES


def ssim(baseline: Tensor, image: Tensor) -> float:
    """(3, H, W) uint8 each -> structural similarity with the usual Gaussian window, 1 for equal images.

    Only windows that lie within the image count. The window shrinks for images smaller than 11 pixels.
    """
    # float64, because variances here are small differences of large means.
    x, y = (values.double() / 255 for values in (baseline, image))
    reach = min(WINDOW_REACH, (min(x.shape[-2:]) - 1) // 2)
    mean_x, mean_y, xx, yy, xy = _window_means(torch.stack([x, y, x * x, y * y, x * y]), reach)
    variance_x, variance_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + FLAT_MEAN) / (mean_x**2 + mean_y**2 + FLAT_MEAN)
    structure = (2 * covariance + FLAT_VARIANCE) / (variance_x + variance_y + FLAT_VARIANCE)
    return float((luminance * structure).mean())


def _window_means(values: Tensor, reach: int) -> Tensor:
    """(5, 3, H, W) -> (5, 3, H - 2 reach, W - 2 reach), one axis after the other."""
    weights = [math.exp(-0.5 * (offset / WINDOW_SIGMA) ** 2) for offset in range(-reach, reach + 1)]
    for axis in (-2, -1):
        length = values.shape[axis] - 2 * reach
        # Shifted sums: convolutions in float64 are ten times slower on a CPU.
        means = torch.zeros_like(values.narrow(axis, 0, length))
        for start, weight in enumerate(weights):
            means.add_(values.narrow(axis, start, length), alpha=weight / sum(weights))
        values = means
    return values


def _decibels(error: float) -> float:
    return 10 * math.log10(255**2 / error)
